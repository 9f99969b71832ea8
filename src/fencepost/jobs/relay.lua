-- relay: put jobs into the queue that an outbox holds, each once, unless this comes too late to know.
-- KEYS   bodies {ns:jobs:queue}:b, due :d, ready :r, claims :e, unique :u, remembered :o, wake :t
-- ARGV   look_ms, until_ms, remember_ms, jobs…
-- needs: clock, record, place, history, add
-- resend: harmless, an id that was added is remembered
-- ->     letter id…    of each job (id, when, mode, record), as add answers
-- ->     LATE          ids may have been forgotten since the outbox was read; nothing was added
local bodies, due, ready, claims = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local unique, remembered, wake = KEYS[5], KEYS[6], KEYS[7]
local look_ms, until_ms, remember_ms = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]

local q = {bodies = bodies, due = due, ready = ready, claims = claims, unique = unique, remembered = remembered,
  wake = wake}
local _, now_ms = clock()
-- Who read these rows long ago may be the last to: another has added them, deleted them, and let go of their ids.
if now_ms > until_ms then return {'LATE'} end
local said, first_ms = {}, nil
for i = 4, #ARGV, 4 do
  local letter, id, due_ms = add_one(q, ARGV[i], ARGV[i + 1], ARGV[i + 2], remember_ms, ARGV[i + 3], nil, now_ms)
  said[#said + 1], said[#said + 2] = letter, id
  if due_ms then first_ms = math.min(first_ms or due_ms, due_ms) end
end
call_for(q, first_ms, now_ms, look_ms)
return said
