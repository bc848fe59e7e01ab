-- Draws money ahead for the time when the store is away: as much as is wanted, at most a twentieth of what is left.
-- ARGV: epoch, id, owner, ttl us, account, window start, window end (0: none), limit, wanted
-- Answers: ok amount | epoch | window
local id, name, start, ends = ARGV[2], ARGV[5], ARGV[6], tonumber(ARGV[7])
if not current() then return {'epoch'} end
if now < tonumber(start) or (ends > 0 and now >= ends) then return {'window'} end
take(id)
local book = redis.call('HMGET', root .. 'b:' .. name, start .. ':s', start .. ':h')
local rest = tonumber(ARGV[8]) - tonumber(book[1] or '0') - tonumber(book[2] or '0')
local amount = math.max(math.min(tonumber(ARGV[9]), math.floor(rest / 20)), 0)
if amount > 0 then
  add(root .. 'b:' .. name, start .. ':h', int(amount))
  put(id, int(amount), int(now + tonumber(ARGV[4])), ARGV[3], '\nm ' .. name .. ' ' .. start)
end
return {'ok', int(amount)}
