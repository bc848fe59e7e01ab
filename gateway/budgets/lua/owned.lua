-- What a replica holds. ARGV: epoch, owner
-- Answers: ok, then for each hold its id and text as one item | epoch
if not current() then return {'epoch'} end
local found = {'ok'}
for _, id in ipairs(redis.call('ZRANGE', root .. 'x', 0, -1)) do
  local text = redis.call('GET', root .. 'h:' .. id)
  if text and string.match(text, '^[^\n]*\n[^\n]*\n([^\n]*)') == ARGV[2] then found[#found + 1] = id .. '\n' .. text end
end
return found
