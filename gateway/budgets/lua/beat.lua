-- A replica lives. ARGV: epoch, replica
-- Answers: the epoch, us until it opens, replicas heard of in 10 s, expired holds to look up (at most 100), how many of these
-- still hold money
local present = redis.call('HMGET', base .. 'epoch', 'id', 'open')
redis.call('ZADD', base .. 'replicas', int(now), ARGV[2])
redis.call('ZREMRANGEBYSCORE', base .. 'replicas', '-inf', int(now - 10000000))
drop_expired()
local expired, held = redis.call('LRANGE', root .. 'e', 0, 99), 0
for _, item in ipairs(expired) do
  held = held + redis.call('EXISTS', root .. 'h:' .. string.match(item, '^[^\n]*'))
end
return {
  present[1] or '', int(math.max(tonumber(present[2] or '0') - now, 0)), redis.call('ZRANGE', base .. 'replicas', 0, -1),
  expired, held,
}
