-- Sets what an account has spent in its window, never adds. ARGV: epoch, account, window start, spent, 1: only if not known yet
if not current() then return 'epoch' end
local key = root .. 'b:' .. ARGV[2]
if ARGV[5] == '1' and redis.call('HEXISTS', key, 'k') == 1 then return 'known' end
redis.call('HSET', key, 'k', ARGV[3], ARGV[3] .. ':s', ARGV[4])
redis.call('EXPIRE', key, BOOK_S)
return 'ok'
