-- release_share: give a share back if it is still ours, and wake who waits longest.
-- KEYS   shares {ns:kind:name}:l, queue {ns:kind:name}:q, alive {ns:kind:name}:a, ends {ns:kind:name}:e
-- ARGV   attempt, channel
-- needs: first, call_next, now, counted, take_out
-- flags: allow-oom
-- ->     RELEASED
-- ->     LOST
local shares, queue, alive, ends = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local attempt, channel = ARGV[1], ARGV[2]

local stood = tonumber(redis.call('ZSCORE', ends, attempt) or '0') > now()
if not take_out(shares, ends, attempt) then return {'LOST'} end
call_next(queue, alive, channel)
return {stood and 'RELEASED' or 'LOST'}
