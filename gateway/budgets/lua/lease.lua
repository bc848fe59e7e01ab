-- Draws money ahead for the time when the store is away: as much as is wanted, at most a twentieth of what is left; but of what
-- was drawn before at least so much as the owner may be counting on, for it may never hear of the answer.
-- ARGV: epoch, id, owner, ttl us, account, window start, window end (0: none), limit, wanted, at least
-- Answers: ok amount | epoch | window
local id, name, start, ends = ARGV[2], ARGV[5], ARGV[6], tonumber(ARGV[7])
if not current() then return {'epoch'} end
if now < tonumber(start) or (ends > 0 and now >= ends) then return {'window'} end
local before = tonumber(take(id) or '0')
local book = redis.call('HMGET', root .. 'b:' .. name, 'k', start .. ':s', start .. ':h')
-- of an account that has not begun nobody knows what is left
local rest = book[1] and tonumber(ARGV[8]) - tonumber(book[2] or '0') - tonumber(book[3] or '0') or 0
local amount = math.max(math.min(tonumber(ARGV[9]), math.floor(rest / 20)), math.min(before, tonumber(ARGV[10])), 0)
if amount > 0 then
  add(root .. 'b:' .. name, start .. ':h', int(amount))
  put(id, int(amount), int(now + tonumber(ARGV[4])), ARGV[3], '\nm ' .. name .. ' ' .. start)
end
return {'ok', int(amount)}
