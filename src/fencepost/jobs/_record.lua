-- A job's head, which stands before its body: lease, priority, crashes that it may cause, the window
-- of its unique key, the key, and for how long what becomes of it is kept. What is no record of ours gets
-- a claim like any other; the worker that can't read it says so.
local function head_of(record)
  local lease_ms, priority, crashes, window, key, keep_ms =
    record:match('^1 (%d+) (%d) (%d+) (%S+) (%S+) (%d+)\n')
  return tonumber(lease_ms or '20000'), tonumber(priority or '5'), tonumber(crashes or '3'),
    window or '-', key or '-', tonumber(keep_ms or '0')
end
-- Failed tries, crashes that a worker knew of, claims that came back unseen, and the last words about it.
local function counts_of(text)
  local tries, crashes, unseen, why = (text or ''):match('^(%d+) (%d+) (%d+) (.*)$')
  return tonumber(tries or '0'), tonumber(crashes or '0'), tonumber(unseen or '0'), why or ''
end
local function set_counts(q, id, tries, crashes, unseen, why)
  redis.call('HSET', q.counts, id, string.format('%d %d %d %s', tries, crashes, unseen, why))
end

