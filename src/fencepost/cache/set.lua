-- set: write a value that the caller knows to be the newest, and refuse every load that began before.
-- KEYS   entry {ns:cache:name:key}:v, lease {ns:cache:name:key}:l, marks {ns:cache:name:key}:m,
--        intents {ns:cache:name:key}:w
-- ARGV   token, revision, remember_ms, entry, ttl_ms
-- needs: stop
-- ->     PUBLISHED
-- ->     OLDER revision
local entry, lease, marks, intents = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local token, revision, remember_ms, value, ttl_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

if #ttl_ms > 15 or not ttl_ms:match('^[1-9]%d*$') then
  return redis.error_reply('ERR ttl_ms is a positive whole number')
end
if redis.call('GETRANGE', entry, 2, 23) == token then return {'PUBLISHED'} end
local newest = redis.call('GETRANGE', entry, 24, 42)
local floor = redis.call('HGET', marks, 'revision') or ''
if floor > newest then newest = floor end
if revision < newest and revision:sub(1, 1) ~= '-' then return {'OLDER', newest} end
-- First of the writes, since the server may refuse it for want of memory: then nothing has changed.
redis.call('SET', entry, value, 'PX', ttl_ms)
stop(lease, marks, intents, revision, remember_ms)
return {'PUBLISHED'}
