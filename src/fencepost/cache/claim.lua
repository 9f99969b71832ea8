-- claim: take the right to refresh an entry, unless it changed since it was judged.
-- KEYS   entry {ns:cache:name:key}:v, lease {ns:cache:name:key}:l
-- ARGV   token, seen, lease_ms
-- resend: harmless, a repeated request holds its lease already
-- ->     WON
-- ->     VALUE entry            it is another one than was seen: judge again
-- ->     WAIT left_ms entry     somebody else is loading; entry is '' when there is none
local entry, lease = KEYS[1], KEYS[2]
local token, seen, lease_ms = ARGV[1], ARGV[2], ARGV[3]

local owner = redis.call('GET', lease)
if owner == token then return {'WON'} end
local there = redis.call('GET', entry) or ''
-- Looked at again in the same script: between the miss and this, somebody may have published.
if there ~= '' and there:sub(3, 24) ~= seen then return {'VALUE', there} end
if owner then return {'WAIT', redis.call('PTTL', lease), there} end
redis.call('SET', lease, token, 'PX', lease_ms)
return {'WON'}
