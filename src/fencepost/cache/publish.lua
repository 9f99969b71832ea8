-- publish: write what was loaded, if its lease still stands and nothing newer does; free the lease.
-- KEYS   entry {ns:cache:name:key}:v, lease {ns:cache:name:key}:l, marks {ns:cache:name:key}:m,
--        intents {ns:cache:name:key}:w
-- ARGV   token, revision, entry, ttl_ms
-- resend: harmless, a repeated request finds its own token in the entry
-- ->     PUBLISHED
-- ->     REJECTED reason    invalidated, expired (alone), successor, or writing
-- ->     OLDER revision     the source has been seen at this newer revision
local entry, lease, marks, intents = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local token, revision, value, ttl_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

-- Before any change: an error in the middle of a script does not undo what came before it.
if #ttl_ms > 15 or not ttl_ms:match('^[1-9]%d*$') then
  return redis.error_reply('ERR ttl_ms is a positive whole number')
end
if redis.call('GETRANGE', entry, 2, 23) == token then return {'PUBLISHED'} end
local owner = redis.call('GET', lease)
if redis.call('EXISTS', intents) == 1 then
  if owner == token then redis.call('DEL', lease) end
  return {'REJECTED', 'writing'}
end
-- Revisions are digits of one width, or dashes for none, which sort below all digits.
local newest = redis.call('GETRANGE', entry, 24, 42)
local floor = redis.call('HGET', marks, 'revision') or ''
if floor > newest then newest = floor end
if revision < newest and revision:sub(1, 1) ~= '-' then
  if owner == token then redis.call('DEL', lease) end
  return {'OLDER', newest}
end
if owner ~= token then
  if redis.call('HGET', marks, 'stopped') == token then return {'REJECTED', 'invalidated'} end
  return {'REJECTED', owner and 'successor' or 'expired'}
end
redis.call('SET', entry, value, 'PX', ttl_ms)
redis.call('DEL', lease)
return {'PUBLISHED'}
