-- cancel: take a job out of the queue; one that runs is told only if that is asked for.
-- KEYS   bodies {ns:jobs:queue}:b, due :d, ready :r, claimed :c, claims :e, counts :m, unique :u,
--        remembered :o, dead :x, result {ns:jobs:queue}:R:id, head :q
-- ARGV   id, running, channel
-- needs: clock, record, place, unique, settle
-- flags: allow-oom
-- ->     CANCELLED    it never ran, and will not
-- ->     STOPPED      its claim was taken away: its worker is told, and nothing that it says counts any more
-- ->     RUNNING      it runs; nothing was done
-- ->     GONE         it has ended, or never was
local bodies, due, ready, claimed, claims = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local counts, unique, remembered, dead, result = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local head = KEYS[11]
local id, running, channel = ARGV[1], ARGV[2], ARGV[3]

local q = {bodies = bodies, due = due, ready = ready, claimed = claimed, claims = claims, counts = counts,
  unique = unique, remembered = remembered, dead = dead, channel = channel}
local _, now_ms = clock()
q.head, q.now_ms = head, now_ms
local record = redis.call('HGET', bodies, id)
if not record then return {'GONE'} end
local runs = redis.call('HEXISTS', claims, id) == 1
if runs and running ~= '1' then return {'RUNNING'} end
redis.call('HDEL', claims, id)
redis.call('ZREM', claimed, id)
redis.call('ZREM', due, id)
redis.call('ZREM', ready, id)
redis.call('ZREM', dead, id)
redis.call('HDEL', bodies, id)
redis.call('HDEL', counts, id)
local _, _, _, window, key, keep_ms = head_of(record)
if redis.call('HGET', unique, key) == id then redis.call('HDEL', unique, key) end
keep_outcome(q, id, result, keep_ms, 'C', '')
return {runs and 'STOPPED' or 'CANCELLED'}
