-- move: give a job that waits another time.
-- KEYS   bodies {ns:jobs:queue}:b, due :d, ready :r, claims :e, wake :t
-- ARGV   id, when, look_ms
-- needs: clock, record, place, add
-- resend: harmless, it is moved once more
-- ->     MOVED due_ms
-- ->     RUNNING          it runs; nothing was done
-- ->     GONE             it has ended, was given up, or never was
local bodies, due, ready, claims, wake = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local id, when, look_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])

local q = {due = due, ready = ready, wake = wake}
local _, now_ms = clock()
if redis.call('HEXISTS', claims, id) == 1 then return {'RUNNING'} end
local record = redis.call('HGET', bodies, id)
local waited = redis.call('ZREM', due, id) + redis.call('ZREM', ready, id)
if not record or waited == 0 then return {'GONE'} end
local _, priority = head_of(record)
local due_ms = time_of(when, now_ms)
put(q, id, priority, due_ms, now_ms)
call_for(q, due_ms, now_ms, look_ms)
return {'MOVED', digits(due_ms)}
