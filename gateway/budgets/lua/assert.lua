-- Takes a hold without asking for room: a call that is under way already, after the store forgot it.
-- ARGV: epoch, id, amount, expiry us, us that it stands at least, owner, slots (lines as in `put`)
local id = ARGV[2]
if not current() then return 'epoch' end
redis.call('SADD', root .. 'a', id)
redis.call('EXPIRE', root .. 'a', HOLD_S)
if redis.call('EXISTS', root .. 'd:' .. id) == 1 then return 'done' end
if stands(id) then return 'live' end
take(id) -- it expired, and is taken anew
for kind, key, start in string.gmatch(ARGV[7], '\n(%l) (%S+) (%S+)') do
  if kind == 'm' then
    add(root .. 'b:' .. key, start .. ':h', ARGV[3])
  else
    redis.call('INCR', root .. 'c:' .. key)
  end
end
put(id, ARGV[3], int(math.max(tonumber(ARGV[4]), now + tonumber(ARGV[5]))), ARGV[6], ARGV[7])
return 'ok'
