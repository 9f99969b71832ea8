-- claim: take the right to refresh an entry, unless it changed since it was judged.
-- KEYS   entry {ns:cache:name:key}:v, lease {ns:cache:name:key}:l, intents {ns:cache:name:key}:w,
--        journal {ns:cache:name:key}:j
-- ARGV   token, seen, lease_ms
-- needs: whole
-- resend: harmless, a repeated request holds its lease already
-- ->     WON
-- ->     VALUE entry            it is another one than was seen: judge again
-- ->     WAIT left_ms owner     somebody else is loading
local entry, lease, intents, journal = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local token, seen, lease_ms = ARGV[1], ARGV[2], ARGV[3]

if not whole(lease_ms) then return redis.error_reply('ERR lease_ms is a positive whole number') end
local owner = redis.call('GET', lease)
if owner and owner:sub(1, #token) == token then return {'WON'} end
-- Looked at again in the same script: between the miss and this, somebody may have published.
if redis.call('GETRANGE', entry, 2, 23) ~= seen then
  local there = redis.call('GET', entry)
  if there then return {'VALUE', there} end
end
-- The source does not have it yet: a load would bring back what came before.
local unsaved = redis.call('HGET', journal, 'entry')
if unsaved then return {'VALUE', unsaved} end
if owner then return {'WAIT', redis.call('PTTL', lease), owner:sub(1, 22)} end
-- Taken while somebody writes, it never publishes: the load may read what is there before the save,
-- and end when the writer has died and its announcement has run out.
local tainted = redis.call('EXISTS', intents) == 1 and token .. '!' or token
redis.call('SET', lease, tainted, 'PX', lease_ms)
return {'WON'}
