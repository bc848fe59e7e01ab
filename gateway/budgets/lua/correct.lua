-- Moves what an account has spent, once for an id. ARGV: epoch, account, window start, id, delta, ms to remember
if not current() then return 'epoch' end
local key, mark = root .. 'b:' .. ARGV[2], root .. 'd:' .. ARGV[4] .. ' ' .. ARGV[2]
if redis.call('HGET', key, 'k') ~= ARGV[3] or redis.call('EXISTS', mark) == 1 then return 'no' end
add(key, ARGV[3] .. ':s', ARGV[5])
redis.call('SET', mark, ARGV[5], 'PX', ARGV[6])
return 'ok'
