-- Claims whose lease has ended, a bounded number: the jobs are ready again, where they were.
-- A crash counts only if the worker had said that it knew of the claim: else a reply was lost, no more.
-- One that comes back unseen time and again kills its readers before they can say a word.
local function reclaim(q, now_ms, most)
  if most <= 0 then return 0 end
  local ended = redis.call('ZRANGEBYSCORE', q.claimed, '-inf', digits(now_ms), 'LIMIT', 0, most)
  for _, id in ipairs(ended) do
    local claim = redis.call('HGET', q.claims, id) or ''
    local _, turn, _, place_ms, _, worker = claim:match('^(%d+) (%d+) (%d+) (%d+) (%S) (%S+)$')
    redis.call('ZREM', q.claimed, id)
    redis.call('HDEL', q.claims, id)
    local record = redis.call('HGET', q.bodies, id)
    tell_try(q, 'L', id, now_ms, claim)
    if record then
      local _, priority, most_crashes, window, key = head_of(record)
      local tries, crashes, unseen = counts_of(redis.call('HGET', q.counts, id))
      -- By a later turn, be it this one.
      local later = tonumber((redis.call('HGET', q.workers, worker or '') or '0'):match('^%d+')) - 1
      if worker == q.worker then later = tonumber(q.turn) - 1 end
      local saw = math.max(tonumber(redis.call('HGET', q.known, worker or '') or '0'), later)
      if saw >= tonumber(turn or '0') then crashes = crashes + 1 else unseen = unseen + 1 end
      set_counts(q, id, tries, crashes, unseen, 'lost by worker ' .. (worker or '?'))
      if crashes >= most_crashes or unseen >= 10 then
        bury(q, id, window, key, now_ms)
      else
        regain_key(q, id, window, key)
        make_ready(q, id, priority, tonumber(place_ms or '0'))
      end
    end
  end
  return #ended
end

