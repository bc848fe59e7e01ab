-- Books what an attempt cost and frees its hold, once for an id.
-- ARGV: epoch, id, cost (empty: what was held), amount as the caller held it, ms to remember the id, accounts, gates, then
--       for each account: name, window start; for each gate: name, time to give back (us; below 0: to take)
-- Answers id and: ok cost held | again cost | epoch
local id, cost, accounts, gates = ARGV[2], ARGV[3], tonumber(ARGV[6]), tonumber(ARGV[7])
if not current() then return {id, 'epoch'} end
local before = redis.call('GET', root .. 'd:' .. id)
if before then
  take(id)
  return {id, 'again', before}
end
local held = take(id) or ARGV[4]
if cost == '' then cost = held end
local at = 8
for _ = 1, accounts do
  -- what the ledger had of this attempt when the account began is not added again
  if redis.call('SISMEMBER', root .. 's:' .. ARGV[at], id) == 0 then
    add(root .. 'b:' .. ARGV[at], ARGV[at + 1] .. ':s', cost)
  end
  at = at + 2
end
for _ = 1, gates do
  local due, back = redis.call('GET', root .. 'g:' .. ARGV[at]), tonumber(ARGV[at + 1])
  if back < 0 then
    due = math.max(tonumber(due or '0'), now) - back
    redis.call('SET', root .. 'g:' .. ARGV[at], int(due), 'PX', int(math.ceil((due - now) / 1000) + 1000))
  elseif due then
    redis.call('SET', root .. 'g:' .. ARGV[at], int(tonumber(due) - back), 'KEEPTTL')
  end
  at = at + 2
end
redis.call('SET', root .. 'd:' .. id, cost, 'PX', ARGV[5])
return {id, 'ok', cost, held}
