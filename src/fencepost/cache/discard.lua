-- discard: drop what can't be read, if it is still what was found.
-- KEYS   entry {ns:cache:name:key}:v
-- ARGV   head, size
-- resend: harmless, it is gone already
-- ->     DISCARDED
-- ->     CHANGED    something else is there by now, or nothing
local entry = KEYS[1]
local head, size = ARGV[1], ARGV[2]

local kind = redis.call('TYPE', entry)['ok']
-- A list, say, has no head: whatever it holds, it is no entry.
if kind == 'none' or kind ~= 'string' and size ~= '-1' then return {'CHANGED'} end
if kind == 'string' and (redis.call('STRLEN', entry) ~= tonumber(size)
    or redis.call('GETRANGE', entry, 0, 99) ~= head) then return {'CHANGED'} end
redis.call('DEL', entry)
return {'DISCARDED'}
