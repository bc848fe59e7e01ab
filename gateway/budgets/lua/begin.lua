-- What the ledger says of an account that the store does not know. Attempts of the last minutes come one by one: one that was
-- settled here already is counted already, and one that is settled later is known by then not to count again.
-- ARGV: epoch, account, window start, 1 if this is the last part, spent before those minutes, then for each attempt: id, cost
if not current() then return 'epoch' end
local key, seen = root .. 'b:' .. ARGV[2], root .. 's:' .. ARGV[2]
for at = 6, #ARGV, 2 do
  local id = ARGV[at]
  if redis.call('EXISTS', root .. 'd:' .. id) == 0 and redis.call('SADD', seen, id) == 1 then
    add(key, ARGV[3] .. ':s', ARGV[at + 1])
  end
end
if #ARGV > 5 then redis.call('EXPIRE', seen, HOLD_S) end
if ARGV[4] == '1' and redis.call('HSETNX', key, 'k', ARGV[3]) == 1 then add(key, ARGV[3] .. ':s', ARGV[5]) end
redis.call('EXPIRE', key, BOOK_S)
return 'ok'
