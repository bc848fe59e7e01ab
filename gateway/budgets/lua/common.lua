-- Stands before each of the other scripts. KEYS[1] is `tollway:{ORG}:`, so all keys of an organisation live in one slot.
--
-- ORG:epoch          hash    id, run (the server's run id when it began), open (us; nobody is admitted before)
-- ORG:expected       set     replicas that have not asserted their holds in this epoch yet
-- ORG:replicas       zset    replica -> when it was last heard of (us)
-- ORG:EPOCH:b:A      hash    account A: k (start of its present window), START:s (spent), START:h (held), nano-dollars
-- ORG:EPOCH:h:ID     string  a live hold: amount, expiry, owner, then a line for each slot
-- ORG:EPOCH:x        zset    live holds by expiry
-- ORG:EPOCH:e        list    holds that expired and were not settled: whether they cost anything is looked up in the ledger, and
--                            until that was done once their money stays held, for it may be spent already
-- ORG:EPOCH:d:ID     string  a settled id and what it cost, for a while
-- ORG:EPOCH:a        set     ids asserted in this epoch: calls that may be older than the minutes that accounts begin with
-- ORG:EPOCH:s:A      set     attempts that were in the ledger, and counted, when account A began
-- ORG:EPOCH:g:G      string  rate limit G: when it is even again (us)
-- ORG:EPOCH:c:G      string  concurrency limit G: how many run
--
-- Lua's numbers are doubles: amounts stay below 2^53, and leave as text by `int`, never by `..`, which rounds.
local base, now_at = KEYS[1], redis.call('TIME')
local now = now_at[1] * 1000000 + now_at[2]
local epoch = ARGV[1]
local root = base .. epoch .. ':'
local BOOK_S, HOLD_S, IDLE_S = 691200, 172800, 691200

local function int(n)
  return string.format('%.0f', n)
end

local function add(key, field, text)
  if text ~= '0' and text ~= '-0' then redis.call('HINCRBY', key, field, text) end
end

-- Is this the epoch that the caller believes in?
local function current()
  return redis.call('HGET', base .. 'epoch', 'id') == epoch
end

-- Gives back the places of a hold in limits of how many run.
local function leave(text)
  for key in string.gmatch(text, '\nc (%S+)') do
    if redis.call('DECR', root .. 'c:' .. key) <= 0 then redis.call('DEL', root .. 'c:' .. key) end
  end
end

-- Frees a hold; its amount, or nothing.
local function take(id)
  local text = redis.call('GET', root .. 'h:' .. id)
  if not text then return nil end
  redis.call('DEL', root .. 'h:' .. id)
  redis.call('ZREM', root .. 'x', id)
  local amount = string.match(text, '^(%d+)')
  for key, start in string.gmatch(text, '\nm (%S+) (%S+)') do
    add(root .. 'b:' .. key, start .. ':h', '-' .. amount)
  end
  leave(text)
  return amount
end

-- Whether a hold that is there still stands, or has expired and waits to be looked up.
local function stands(id)
  return redis.call('ZSCORE', root .. 'x', id)
end

local function drop_expired()
  for _, id in ipairs(redis.call('ZRANGE', root .. 'x', '-inf', int(now), 'BYSCORE', 'LIMIT', 0, 64)) do
    local text = redis.call('GET', root .. 'h:' .. id)
    if text and string.find(text, '\nm ') and string.sub(id, 1, 6) ~= 'lease:' then
      leave(text)
      text = string.gsub(text, '\nc [^\n]*', '')
      redis.call('SET', root .. 'h:' .. id, text, 'EX', HOLD_S)
      redis.call('ZREM', root .. 'x', id)
      redis.call('LPUSH', root .. 'e', id .. '\n' .. text)
      redis.call('EXPIRE', root .. 'e', HOLD_S)
    elseif not take(id) then
      redis.call('ZREM', root .. 'x', id)
    end
  end
end

-- Writes a hold. `slots` are lines `m ACCOUNT START` and `c GATE 0`.
local function put(id, amount, expires, owner, slots)
  redis.call('SET', root .. 'h:' .. id, amount .. '\n' .. expires .. '\n' .. owner .. slots, 'EX', HOLD_S)
  redis.call('ZADD', root .. 'x', expires, id)
  redis.call('EXPIRE', root .. 'x', HOLD_S)
end
