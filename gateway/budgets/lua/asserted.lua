-- A replica has asserted all its holds; when the last one that was expected has, the epoch opens. ARGV: epoch, replica
if not current() then return 'epoch' end
redis.call('SREM', base .. 'expected', ARGV[2])
if redis.call('HGET', base .. 'epoch', 'early') == '1' and redis.call('SCARD', base .. 'expected') == 0 then
  redis.call('HSET', base .. 'epoch', 'open', '0')
end
return 'ok'
