-- An expired hold was looked up: it holds nothing any more, and leaves the list, or goes to its end to be looked up again.
-- ARGV: epoch, item, 1: keep it, 0: done with it
if not current() then return 'epoch' end
local id = string.match(ARGV[2], '^[^\n]*')
if not stands(id) then take(id) end -- else it was taken again meanwhile
local gone, keep = redis.call('LREM', root .. 'e', 1, ARGV[2]), ARGV[3] == '1'
if gone > 0 and keep and redis.call('EXISTS', root .. 'd:' .. id) == 0 then redis.call('RPUSH', root .. 'e', ARGV[2]) end
return 'ok'
