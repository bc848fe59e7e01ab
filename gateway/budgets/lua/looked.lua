-- An expired hold was looked up: it leaves the list, or goes to its end to be looked up again.
-- ARGV: epoch, item, 1: keep it, 0: done with it
if not current() then return 'epoch' end
local gone = redis.call('LREM', root .. 'e', 1, ARGV[2])
if gone > 0 and ARGV[3] == '1' then redis.call('RPUSH', root .. 'e', ARGV[2]) end
return 'ok'
