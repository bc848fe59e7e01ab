-- What an account has spent in its window, by the ledger. ARGV: epoch, account, window start, spent, 1: only if not known yet
-- An account that is not known yet may have been charged for asserted calls, which the ledger's figure leaves out: it is added
-- to that. For one that is known the figure is set.
if not current() then return 'epoch' end
local key = root .. 'b:' .. ARGV[2]
if ARGV[5] == '1' then
  if redis.call('HSETNX', key, 'k', ARGV[3]) == 0 then return 'known' end
  add(key, ARGV[3] .. ':s', ARGV[4])
else
  redis.call('HSET', key, 'k', ARGV[3], ARGV[3] .. ':s', ARGV[4])
end
redis.call('EXPIRE', key, BOOK_S)
return 'ok'
