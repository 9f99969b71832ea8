-- release: give a lease back without publishing, so that the next one need not wait for its end.
-- KEYS   lease {ns:cache:name:key}:l
-- ARGV   token
-- needs: wake
-- resend: harmless, it is not ours any more
-- ->     RELEASED
-- ->     LOST
local lease = KEYS[1]
local token = ARGV[1]

if redis.call('GETRANGE', lease, 0, #token - 1) ~= token then return {'LOST'} end
redis.call('DEL', lease)
wake(lease)
return {'RELEASED'}
