-- touch: let an entry live anew, if it is still the one that was seen.
-- KEYS   entry {ns:cache:name:key}:v
-- ARGV   seen, fresh_until, ttl_ms
-- needs: whole
-- resend: harmless, it lives from then on
-- ->     TOUCHED
-- ->     CHANGED    another one is there by now, or none
local entry = KEYS[1]
local seen, fresh_until, ttl_ms = ARGV[1], ARGV[2], ARGV[3]

if not whole(ttl_ms) then return redis.error_reply('ERR ttl_ms is a positive whole number') end
if redis.call('GETRANGE', entry, 2, 23) ~= seen then return {'CHANGED'} end
redis.call('SETRANGE', entry, 43, fresh_until)
redis.call('PEXPIRE', entry, ttl_ms)
return {'TOUCHED'}
