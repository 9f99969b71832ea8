-- set: write a value that the caller knows to be the newest, and refuse every load that began before.
-- KEYS   entry {ns:cache:name:key}:v, lease {ns:cache:name:key}:l, marks {ns:cache:name:key}:m,
--        intents {ns:cache:name:key}:w
-- ARGV   token, revision, entry, ttl_ms, remember_ms
-- needs: whole, newest, wake, stop
-- ->     PUBLISHED
-- ->     OLDER revision
local entry, lease, marks, intents = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local token, revision, value, ttl_ms, remember_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

if not whole(ttl_ms) then return redis.error_reply('ERR ttl_ms is a positive whole number') end
local known = newest(entry, marks, revision)
if revision:match('^%d') and revision ~= known then return {'OLDER', known} end
-- First of the writes, since the server may refuse it for want of memory: then nothing has changed.
redis.call('SET', entry, value, 'PX', ttl_ms)
stop(lease, marks, intents, known, remember_ms)
return {'PUBLISHED'}
