-- Reserves an amount in all accounts and passes all gates, or changes nothing.
-- ARGV: epoch, id, amount, ttl us, owner, accounts, gates, then
--       for each account: name, window start, window end (0: none), limit, 1 if it may refuse
--       for each gate: name, kind, limit or time one call takes (us), burst (us)
-- Answers id and: ok amount expiry slots | again ... | epoch | shut wait | done | window now | seed n | full n spent held | fast n wait
local id, amount, ttl, owner = ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local accounts, gates = tonumber(ARGV[6]), tonumber(ARGV[7])

local present = redis.call('HMGET', base .. 'epoch', 'id', 'open')
if present[1] ~= epoch then return {id, 'epoch'} end
if now < tonumber(present[2]) then return {id, 'shut', int(tonumber(present[2]) - now)} end
drop_expired()
if redis.call('EXISTS', root .. 'd:' .. id) == 1 then return {id, 'done'} end
local live = redis.call('GET', root .. 'h:' .. id)
if live and stands(id) then return {id, 'again', live} end
if live then take(id) end -- it expired: it is taken anew

local at, seen = 8, {}
for n = 1, accounts do
  local name, start, ends = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2])
  if now < tonumber(start) or (ends > 0 and now >= ends) then return {id, 'window', int(now)} end
  local book = redis.call('HMGET', root .. 'b:' .. name, 'k', start .. ':s', start .. ':h')
  if not book[1] then return {id, 'seed', n} end
  local spent, held, limit = tonumber(book[2] or '0'), tonumber(book[3] or '0'), tonumber(ARGV[at + 3])
  if ARGV[at + 4] == '1' and (spent + held >= limit or spent + held + tonumber(amount) > limit) then
    return {id, 'full', n, int(spent), int(held)}
  end
  seen[n] = book[1]
  at = at + 5
end
local passed = at
for n = 1, gates do
  local name, kind, size, burst = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  if kind == 'concurrent' then
    if tonumber(redis.call('GET', root .. 'c:' .. name) or '0') >= size then return {id, 'fast', n, '1000000'} end
  else
    local ahead = tonumber(redis.call('GET', root .. 'g:' .. name) or '0') - now
    local over = ahead + size - burst
    if ahead > 0 and over > 0 then return {id, 'fast', n, int(math.min(over, ahead))} end
  end
  at = at + 4
end

local slots = {}
at = 8
for n = 1, accounts do
  local name, start = ARGV[at], ARGV[at + 1]
  local key = root .. 'b:' .. name
  if seen[n] ~= start then -- a window begins: those before it are forgotten once they hold nothing
    redis.call('HSET', key, 'k', start)
    for _, field in ipairs(redis.call('HKEYS', key)) do
      local old = string.match(field, '^(%d+):s$')
      if old and old ~= start and tonumber(redis.call('HGET', key, old .. ':h') or '0') == 0 then
        redis.call('HDEL', key, field, old .. ':h')
      end
    end
  end
  add(key, start .. ':h', amount)
  redis.call('EXPIRE', key, BOOK_S)
  slots[n] = '\nm ' .. name .. ' ' .. start
  at = at + 5
end
at = passed
for _ = 1, gates do
  local name, kind, size = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2])
  if kind == 'concurrent' then
    redis.call('INCR', root .. 'c:' .. name)
    redis.call('EXPIRE', root .. 'c:' .. name, HOLD_S)
    slots[#slots + 1] = '\nc ' .. name .. ' 0'
  else
    local due = math.max(tonumber(redis.call('GET', root .. 'g:' .. name) or '0'), now) + size
    redis.call('SET', root .. 'g:' .. name, int(due), 'PX', int(math.ceil((due - now) / 1000) + 1000))
  end
  at = at + 4
end
local expires = int(now + ttl)
if #slots > 0 then put(id, amount, expires, owner, table.concat(slots)) end
return {id, 'ok', amount, expires}
