-- fenced_set: write a value, unless a newer holder of its lock has written.
-- KEYS   gate {key}:fence, value key
-- ARGV   fence, token, remember_ms, value, ttl_ms
-- needs: refused
-- ->     SET
-- ->     REFUSED fence    of who has written since
local gate, key = KEYS[1], KEYS[2]
local fence, token, remember_ms, value, ttl_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

local newer = refused(gate, fence, token, remember_ms)
if newer then return {'REFUSED', newer} end
if ttl_ms == '0' then redis.call('SET', key, value) else redis.call('SET', key, value, 'PX', ttl_ms) end
return {'SET'}
