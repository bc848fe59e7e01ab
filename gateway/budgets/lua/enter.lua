-- Which epoch it is. A server that forgot (another run id, or no epoch at all) begins a new one.
-- ARGV: a fresh id, the server's run id, us to stay shut, replica, 1 if the replicas named next are all there are, replicas
-- Answers: id, us until it opens
local present = redis.call('HMGET', base .. 'epoch', 'id', 'run', 'open')
redis.call('ZADD', base .. 'replicas', int(now), ARGV[4])
if present[1] and present[2] == ARGV[2] then
  return {present[1], int(math.max(tonumber(present[3]) - now, 0))}
end
redis.call('HSET', base .. 'epoch', 'id', ARGV[1], 'run', ARGV[2], 'open', int(now + tonumber(ARGV[3])), 'early', ARGV[5])
redis.call('DEL', base .. 'expected')
for n = 6, #ARGV do redis.call('SADD', base .. 'expected', ARGV[n]) end
return {ARGV[1], ARGV[3]}
