-- Raises a hold to a new total and expiry, or changes nothing. One that expired and was freed is taken again in full.
-- ARGV: epoch, id, amount, ttl us, owner, accounts, then for each account: name, window start, limit, 1 if it may refuse
-- Answers id and: ok amount expiry | epoch | done | full n spent held
local id, amount, owner, accounts = ARGV[2], tonumber(ARGV[3]), ARGV[5], tonumber(ARGV[6])
if not current() then return {id, 'epoch'} end
drop_expired()
if redis.call('EXISTS', root .. 'd:' .. id) == 1 then return {id, 'done'} end
local live = redis.call('GET', root .. 'h:' .. id)
local before = live and tonumber(string.match(live, '^(%d+)')) or 0
if before > amount then amount = before end
local more, at, slots = amount - before, 7, {}
for n = 1, accounts do
  local name, start, limit = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2])
  local book = redis.call('HMGET', root .. 'b:' .. name, 'k', start .. ':s', start .. ':h')
  local spent, held = tonumber(book[2] or '0'), tonumber(book[3] or '0')
  -- a window that is over refuses nothing any more
  if more > 0 and ARGV[at + 3] == '1' and book[1] == start and (spent + held >= limit or spent + held + more > limit) then
    return {id, 'full', n, int(spent), int(held)}
  end
  slots[n] = '\nm ' .. name .. ' ' .. start
  at = at + 4
end
for n = 1, accounts do
  local name, start = string.match(slots[n], '^\nm (%S+) (%S+)')
  add(root .. 'b:' .. name, start .. ':h', int(more))
end
local lines = live and string.match(live, '^[^\n]*\n[^\n]*\n[^\n]*(.*)$') or table.concat(slots)
local expires = int(now + tonumber(ARGV[4]))
put(id, int(amount), expires, owner, lines)
return {id, 'ok', int(amount), expires}
