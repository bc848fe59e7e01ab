-- Sets what an account has spent in its present window. ARGV: epoch, account, window start, spent
if not current() then return 'epoch' end
redis.call('HSET', root .. 'b:' .. ARGV[2], 'k', ARGV[3], ARGV[3] .. ':s', ARGV[4])
redis.call('EXPIRE', root .. 'b:' .. ARGV[2], BOOK_S)
return 'ok'
