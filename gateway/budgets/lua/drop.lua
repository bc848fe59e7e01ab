-- Frees a hold that stands for no attempt (a lease) and books nothing. ARGV: epoch, id
if not current() then return 'epoch' end
take(ARGV[2])
return 'ok'
