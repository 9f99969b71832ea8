-- add: put jobs into the queue, each at its time, each once.
-- KEYS   bodies {ns:jobs:queue}:b, due :d, ready :r, claims :e, unique :u, remembered :o, wake :t,
--        history :h, results {ns:jobs:queue}:R:id…
-- ARGV   look_ms, told, jobs…
-- needs: clock, record, place, history, add
-- ->     letter id…    of each job (id, when, mode, remember_ms, record): C created, K kept, M moved,
--        R one with its key is running, L one has ended lately; and the id of the one that is there
local bodies, due, ready, claims = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local unique, remembered, wake, history = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local look_ms, told = tonumber(ARGV[1]), tonumber(ARGV[2])

local q = {bodies = bodies, due = due, ready = ready, claims = claims, unique = unique, remembered = remembered,
  wake = wake, history = history, told = told}
local _, now_ms = clock()
local said, first_ms = {}, nil
for i = 3, #ARGV, 5 do
  local result = KEYS[9 + (i - 3) / 5]
  local letter, id, due_ms =
    add_one(q, ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4], result, now_ms)
  said[#said + 1], said[#said + 2] = letter, id
  if due_ms then first_ms = math.min(first_ms or due_ms, due_ms) end
end
call_for(q, first_ms, now_ms, look_ms)
trim(q)
return said
