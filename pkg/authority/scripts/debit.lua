-- Debit decides a batch of requests in one atomic step: every key is read
-- once, the requests are decided in order on working copies, every changed key
-- is written once with its TTL. It does what limit.Evaluate does, in the same
-- order and under the same names; semantics S3 to S8, S13 to S16, S21, S23.
--
-- KEYS     the distinct keys of the batch, at most 64
-- ARGV[1]  one MessagePack array of integers:
--            P, R
--            P rules of 12: algorithm (its letter), policy version, limit (hits), stored length of a
--              window (ms, or the code of a calendar unit), window (ms), num, den (rate: num/den
--              millitokens a ms), capacity, highest level (millitokens), three calendar boundaries
--              (ms since the epoch; 0 0 0: none)
--            R requests: not-after (ms since the epoch), denied elsewhere (0 or 1), number of checks, and
--              for each check: key (its place in KEYS), rule (its place above), cost (hits; 0 is a peek),
--              kind (0 refund, 1 enforced, 2 quota, 3 shadow; in this order) + 4 when it overdraws
-- returns  one MessagePack array of integers: now (ms since the epoch), number of foreign strings met,
--          and for each check: verdict (below), remaining (hits), reset or retry (ms; -1: none)
-- stores   strings: algorithm 1, layout 1, policy version 6, then
--            F  count 7, end 6, length 6            B  level 7, remainder 7, updated 6
--            S  current 7, previous 7, end 6, length 6    L  (time 6, hits 2) for each entry
--          big-endian; counts < 2^53, times in ms since the epoch; see limit.AppendState
--
-- Invariants: integers only, every product < 2^53 (the loader sees to it); nothing is written for a
-- denied, late, stale or unreadable request but refunds and what overdraws; no write without a TTL.

local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max
local FIXED, BUCKET, SLIDING, LOG, PERMITS = 70, 66, 83, 76, 67
local LAYOUT, MAX_LAYOUT, EXACT, SLACK = 1, 8, 2 ^ 53, 1000
local MAX_SLIDING, MAX_SLIDING_WINDOW, MIN_LENGTH, MAX_LOG = 2 ^ 33 - 1, 2 ^ 36 - 1, 1000, 1000
local REFUND, QUOTA, SHADOW, OVERDRAW = 0, 2, 3, 4
local ALLOW, DENY, NEVER, LATE, STALE, NEWER, UNDECIDED, NOT_EVALUATED = 0, 1, 2, 3, 4, 5, 6, 7

local clock = redis.call('TIME')
local now = clock[1] * 1000 + floor(clock[2] / 1000)
local args = cmsgpack.unpack(ARGV[1])
local stored = redis.call('MGET', unpack(KEYS))
local reply, size, foreign = { now, 0 }, 2, 0

-- The rules.
local rules, at = {}, 3
for i = 1, args[1] do
  rules[i] = {
    alg = args[at], ver = args[at + 1], limit = args[at + 2], length = args[at + 3], window = args[at + 4],
    num = args[at + 5], den = args[at + 6], cap = args[at + 7], most = args[at + 8],
    b0 = args[at + 9], b1 = args[at + 10], b2 = args[at + 11],
  }
  at = at + 12
end

-- load_log reads the entries of a log, nil for what is none. Copies of a state
-- share them: each has its own first and last entry. sums are hits from the
-- begin of the log, so that no copy has to add them up; raw is the stored string,
-- whose first entries, as many as clean says, are still as they were.
local function load_log(v)
  local n, times, sums = #v / 8 - 1, {}, { [0] = 0 }
  local before = -1
  for i = 1, n do
    local time, hits = struct.unpack('>I6I2', v, 8 * i + 1)
    if time <= before or hits == 0 then return nil end
    times[i], sums[i], before = time, sums[i - 1] + hits, time
  end
  return { times = times, sums = sums, raw = v, clean = n }
end

-- load reads a stored string: a state, false for an absent or a foreign one, or
-- NEWER for what only a newer program may touch.
local function load(v)
  if not v then return false end
  local alg, layout = v:byte(1, 2)
  if #v < 8 or alg < 65 or alg > 90 or layout == 0 or layout > MAX_LAYOUT then
    foreign = foreign + 1
    return false
  end
  if layout > LAYOUT then return NEWER end
  local s = { alg = alg, used = 0, prev = 0, stop = 0, length = 0, rest = 0, updated = 0 }
  if alg == FIXED and #v == 27 then
    s.ver, s.used, s.stop, s.length = struct.unpack('>I6I7I6I6', v, 3)
    if s.used < EXACT then return s end
  elseif alg == SLIDING and #v == 34 then
    s.ver, s.used, s.prev, s.stop, s.length = struct.unpack('>I6I7I7I6I6', v, 3)
    if s.used < EXACT and s.prev < EXACT then return s end
  elseif alg == BUCKET and #v == 28 then
    s.ver, s.used, s.rest, s.updated = struct.unpack('>I6I7I7I6', v, 3)
    if s.used < EXACT and s.rest < EXACT then return s end
  elseif alg == LOG and #v % 8 == 0 and #v <= 8 + 8 * MAX_LOG then
    s.ver, s.log = struct.unpack('>I6', v, 3), load_log(v)
    if s.log then
      s.first, s.last = 1, s.log.clean
      s.used = s.log.sums[s.last]
      return s
    end
  elseif alg == PERMITS and (#v - 8) % 22 == 0 then
    return NEWER -- known, but not decided here
  end
  foreign = foreign + 1
  return false
end

-- The states by the place of their key, read when a request first meets them;
-- the rules whose writes they are; and the copies that the request at hand
-- works on.
local slots, dirty, copies = {}, {}, {}

-- keep makes a request's copy the state of its key, for a change that rule r
-- made. An older rule's change after a newer one's leaves the TTL to the newer.
local function keep(s, r)
  local k = s.key
  local state, by = slots[k], dirty[k]
  if not by or r.ver == s.ver or by.ver < state.ver then dirty[k] = r end
  slots[k] = s
end

-- window_end is the end of now's window; nil outside of the boundaries.
local function window_end(r)
  if r.b2 == 0 then return now - now % r.window + r.window end
  if now < r.b0 or now >= r.b2 then return nil end
  if now < r.b1 then return r.b1 end
  return r.b2
end

-- remainder as this rule reads it: one of another denominator counts 0.
local function remainder(s, r)
  if s.rest >= r.den then return 0 end
  return s.rest
end

-- drain lets the bucket leak until now, with the remainder carried. With
-- keep_excess, what lies above the rule's highest level stays.
local function drain(s, r, keep_excess)
  local level, excess = s.used, 0
  if level > r.most then
    if keep_excess then excess = level - r.most end
    level = r.most
  end
  local rest = remainder(s, r)
  local dt = now - s.updated
  if dt > 0 then
    if dt >= ceil(level * r.den / r.num) then
      level, rest = 0, 0
    else
      local x = dt * r.num + rest
      local leaked = floor(x / r.den)
      level = level - leaked
      rest = x - leaked * r.den
    end
    s.updated = now
  end
  if level == 0 then rest = 0 end
  s.used, s.rest = level + excess, rest
end

-- drain_time is the time until the bucket has leaked by that many millitokens.
local function drain_time(s, r, by)
  if by <= 0 then return 0 end
  by = min(by, r.most)
  return max(0, s.updated - now) + max(0, ceil((by * r.den - remainder(s, r)) / r.num))
end

-- frame is the window of a stored length that now lies in: its begin, its end and
-- the length of the next one, or more. A calendar unit that this rule does not
-- know is taken for the rule's length.
local function frame(r, length)
  if r.b2 > 0 and length == r.length then
    if now < r.b1 then return r.b0, r.b1, r.b2 - r.b1 end
    return r.b1, r.b2, min(2 * (r.b2 - r.b1), MAX_SLIDING_WINDOW)
  end
  if length < MIN_LENGTH or length > MAX_SLIDING_WINDOW then length = min(r.window, MAX_SLIDING_WINDOW) end
  local begin = now - now % length
  return begin, begin + length, length
end

-- scale is a * b / c and the rest of the division, for b <= c: by halves of a, so
-- that no product reaches 2^53.
local function scale(a, b, c)
  local high = floor(a / 65536)
  local x = high * b
  local q = floor(x / c)
  x = (x - q * c) * 65536 + (a - high * 65536) * b
  local p = floor(x / c)
  return q * 65536 + p, x - p * c
end

-- slide brings a sliding window to now, and says whether anything of it is left.
local function slide(s, r)
  s.used, s.prev = min(s.used, MAX_SLIDING), min(s.prev, MAX_SLIDING)
  if s.stop > now then return true end
  local begin, stop = frame(r, s.length)
  if s.stop < begin or s.used == 0 then return false end
  s.prev, s.used, s.stop = s.used, 0, stop
  return true
end

-- estimate is what a sliding window has used at now: the previous window counts
-- by the part of it that a window ending now still covers, rounded up.
local function estimate(s, r)
  local begin, stop = frame(r, s.length)
  local length = stop - begin
  local q, rest = scale(s.prev, min(s.stop - now, length), length)
  if rest > 0 then q = q + 1 end
  return s.used + q
end

-- slide_time is the smallest wait after which a sliding window that has no room
-- for need has it: in this window as the previous one loses weight, or in the
-- next one, where this one does.
local function slide_time(s, r, need)
  local begin, stop, following = frame(r, s.length)
  local room = r.limit - s.used - need
  if room >= 0 then
    local left = scale(stop - begin, room, s.prev)
    return s.stop - now - left
  end
  local left = scale(following, r.limit - need, s.used)
  return s.stop - now + following - left
end

-- seek is the first place of a rising list, between two, that holds at least that.
local function seek(list, from, to, least)
  to = to + 1
  while from < to do
    local middle = floor((from + to) / 2)
    if list[middle] < least then from = middle + 1 else to = middle end
  end
  return from
end

local function new_log() return { times = {}, sums = { [0] = 0 }, raw = '', clean = 0 } end

local function log_limit(r) return min(r.limit, MAX_LOG) end

-- expire drops the entries that no window ending now covers.
local function expire(s, r)
  s.first = seek(s.log.times, s.first, s.last, now - r.window + 1)
  s.used = s.log.sums[s.last] - s.log.sums[s.first - 1]
end

-- add enters hits at now, or at the time of the newest entry when the clock went
-- back: no entry may expire before older ones.
local function add(s, n)
  local log = s.log
  if s.first > s.last or log.times[s.last] < now then
    s.last = s.last + 1
    log.times[s.last], log.sums[s.last] = now, log.sums[s.last - 1]
  end
  log.sums[s.last] = log.sums[s.last] + n
  log.clean = min(log.clean, s.last - 1)
end

-- remove takes hits from the newest entries; there are that many.
local function remove(s, n)
  local log = s.log
  local left = log.sums[s.last] - n
  while s.last >= s.first and log.sums[s.last - 1] >= left do s.last = s.last - 1 end
  if log.sums[s.last] > left then
    log.sums[s.last] = left
    log.clean = min(log.clean, s.last - 1)
  end
end

-- log_time is the time until that many of the oldest hits have expired.
local function log_time(s, r, by)
  local log = s.log
  local i = seek(log.sums, s.first, s.last, log.sums[s.first - 1] + by)
  if i > s.last then return 0 end
  return log.times[i] + r.window - now
end

-- convert gives the copy the form of the rule's algorithm.
local function convert(s, r)
  if s.alg == r.alg then return end
  if s.alg == SLIDING then
    s.used = estimate(s, r)
  elseif s.alg == BUCKET then
    drain(s, r, true) -- a count has no highest level
    s.used = ceil(s.used / 1000)
  end
  s.alg, s.prev, s.rest, s.updated, s.log = r.alg, 0, 0, 0, nil
  if r.alg == SLIDING then
    s.used = min(s.used, MAX_SLIDING)
  elseif r.alg == BUCKET then
    s.used, s.updated = min(s.used * 1000, r.most), now
  elseif r.alg == LOG then
    s.used = min(s.used, log_limit(r))
    s.log, s.first, s.last = new_log(), 1, 0
    if s.used > 0 then add(s, s.used) end
  end
  if r.alg == BUCKET or r.alg == LOG then s.stop, s.length = 0, 0 end
end

local function windowed(alg) return alg == FIXED or alg == SLIDING end

-- prepare returns the request's copy of a key, brought to now and into the form
-- that the rule runs, or the verdict that says why it cannot be decided.
local function prepare(k, r)
  local s = copies[k]
  if not s then
    local state = slots[k]
    if state == nil then
      state = load(stored[k])
      slots[k] = state
    end
    if state == NEWER then return nil, NEWER end
    s = { key = k, used = 0, prev = 0, stop = 0, length = 0, rest = 0, updated = 0 }
    -- A window that has passed counts 0; a state that counts 0 is an absent one.
    if state and state.used + state.prev > 0 and (state.alg ~= FIXED or state.stop > now) then
      s.alg, s.ver, s.used, s.prev, s.stop = state.alg, state.ver, state.used, state.prev, state.stop
      s.length, s.rest, s.updated = state.length, state.rest, state.updated
      s.log, s.first, s.last = state.log, state.first, state.last
    end
    copies[k] = s
  end
  local stop
  if windowed(r.alg) or windowed(s.alg) then
    stop = window_end(r)
    if not stop then return nil, STALE end
  end
  if s.alg == SLIDING and not slide(s, r) then
    s.alg, s.used, s.prev, s.stop, s.length = nil, 0, 0, 0, 0
  elseif s.alg == LOG then
    expire(s, r)
  end
  if not s.alg then
    s.alg, s.ver = r.alg, r.ver
    if r.alg == BUCKET then s.updated = now end
    if r.alg == LOG then s.log, s.first, s.last = new_log(), 1, 0 end
  end
  local older = r.ver < s.ver
  if not older then
    s.ver = r.ver
    convert(s, r)
  end
  if s.alg == BUCKET then
    drain(s, r, older)
  elseif windowed(s.alg) and (s.stop == 0 or (s.length ~= r.length and not older)) then
    -- A window of the rule's length that ends later than now's stays in force:
    -- the clock went back. One of another length carries its count into now's
    -- window, but not for an older rule, or two versions would flip the key.
    if s.prev > 0 then s.used, s.prev = min(estimate(s, r), MAX_SLIDING), 0 end
    s.stop, s.length = stop, r.length
  end
  return s
end

local function amount(s, cost)
  if s.alg == BUCKET then return cost * 1000 end
  return cost
end

local function hits(s, amount)
  if s.alg == BUCKET then return amount / 1000 end
  return amount
end

local function budget(s, r)
  if s.alg == BUCKET then return r.cap end
  if s.alg == LOG then return log_limit(r) end
  return r.limit
end

local function used(s, r)
  if s.alg == SLIDING then return estimate(s, r) end
  return s.used
end

local function fits(s, r, cost)
  if cost == 0 and s.alg == LOG then return true end
  return used(s, r) + amount(s, cost) <= budget(s, r)
end

-- record keeps a cost that used counts already.
local function record(s, r, cost)
  if s.alg == LOG then add(s, cost) end
  keep(s, r)
end

-- overdraw records a cost that did not fit: nothing more once a window is over
-- its limit, never more debt than the cap, never in a log, and never less than
-- before.
local function overdraw(s, r, cost)
  local before = s.used
  if s.alg == BUCKET then
    s.used = max(s.used, min(r.most, s.used + cost * 1000))
  elseif windowed(s.alg) and used(s, r) <= r.limit then
    s.used = s.used + cost
  end
  if s.used ~= before then keep(s, r) end
end

-- refund gives back at most what was used: a sliding window what the current one
-- took, then hits of the previous one, which count by their weight; a log its
-- newest hits.
local function refund(s, r, cost)
  local back = min(s.used, amount(s, cost))
  local before = min(s.prev, cost - hits(s, back))
  if back == 0 and before == 0 then return end
  s.prev = s.prev - before
  if s.alg == LOG then remove(s, back) end
  s.used = s.used - back
  if s.used == 0 then s.rest = 0 end
  keep(s, r)
end

local function answer(verdict, remaining, ms)
  reply[size + 1], reply[size + 2], reply[size + 3] = verdict, remaining, ms
  size = size + 3
end

local function allowed(s, r)
  local left = max(0, budget(s, r) - used(s, r))
  if s.alg == BUCKET then
    return answer(ALLOW, floor(left / 1000), drain_time(s, r, s.used))
  end
  if s.alg == LOG then return answer(ALLOW, left, log_time(s, r, 1)) end
  answer(ALLOW, left, s.stop - now)
end

-- denied: need is the cost plus what earlier checks of the request took.
local function denied(s, r, need)
  local all = budget(s, r)
  local never = amount(s, need) > all
  local verdict = never and NEVER or DENY
  local by = s.used + amount(s, need) - all
  if s.alg == FIXED or never and s.alg == SLIDING then return answer(verdict, 0, s.stop - now) end
  if never then return answer(verdict, 0, -1) end
  if s.alg == SLIDING then return answer(verdict, 0, slide_time(s, r, need)) end
  if s.alg == LOG then return answer(verdict, 0, log_time(s, r, by)) end
  answer(verdict, 0, drain_time(s, r, by))
end

-- The requests.
for _ = 1, args[2] do
  local not_after, refused, n = args[at], args[at + 1] == 1, args[at + 2]
  at = at + 3
  local slot, rule, cost, kind, draws, reason = {}, {}, {}, {}, {}, {}
  copies = {}
  local unable, stale = false, false
  for i = 1, n do
    rule[i], cost[i], kind[i] = rules[args[at + 1]], args[at + 2], args[at + 3]
    if kind[i] >= OVERDRAW then
      kind[i], draws[i] = kind[i] - OVERDRAW, true
    end
    if now <= not_after then
      slot[i], reason[i] = prepare(args[at], rule[i])
      if not slot[i] then
        unable = true
        if reason[i] == STALE then stale = true end
      end
    end
    at = at + 4
  end

  if now > not_after then
    for _ = 1, n do answer(LATE, 0, 0) end
  elseif unable then
    for i = 1, n do answer(stale and STALE or reason[i] or UNDECIDED, 0, 0) end
  else
    -- Refunds stay whatever follows.
    local first = 1
    while first <= n and kind[first] == REFUND do
      refund(slot[first], rule[first], cost[first])
      first = first + 1
    end

    -- Enforced and quota checks, cumulatively on one copy; the quota checks
    -- deny together when all of them do.
    local saved, need, over = {}, {}, {}
    local quotas, full, i = 0, 0, first
    while i <= n and kind[i] < SHADOW do
      local s = slot[i]
      if not saved[s] then saved[s] = s.used end
      need[i] = hits(s, s.used - saved[s]) + cost[i]
      over[i] = not fits(s, rule[i], cost[i])
      if kind[i] == QUOTA then quotas = quotas + 1 end
      if not over[i] then
        s.used = s.used + amount(s, cost[i])
      elseif kind[i] == QUOTA then
        full = full + 1
      else
        refused = true
      end
      i = i + 1
    end
    local last = i - 1
    if quotas > 0 and full == quotas then refused = true end

    if refused then
      for s, used in pairs(saved) do s.used = used end
    end
    for j = first, last do
      if over[j] then
        if draws[j] then overdraw(slot[j], rule[j], cost[j]) end
      elseif not refused and cost[j] > 0 then
        record(slot[j], rule[j], cost[j])
      end
    end

    for j = 1, last do
      if over[j] then
        denied(slot[j], rule[j], need[j])
      else
        allowed(slot[j], rule[j])
      end
    end

    -- Shadow checks, each for itself, and only for an allowed request.
    for j = last + 1, n do
      local s, r = slot[j], rule[j]
      if refused then
        answer(NOT_EVALUATED, 0, 0)
      elseif fits(s, r, cost[j]) then
        if cost[j] > 0 then
          s.used = s.used + amount(s, cost[j])
          record(s, r, cost[j])
        end
        allowed(s, r)
      else
        if draws[j] then overdraw(s, r, cost[j]) end
        denied(s, r, cost[j])
      end
    end
  end
end

-- pack_log is the body of a log: what is as it was, and what is new.
local function pack_log(s)
  local log = s.log
  local clean = min(log.clean, s.last)
  local body = { log.raw:sub(8 * s.first + 1, 8 * clean + 8) }
  for i = max(s.first, clean + 1), s.last do
    body[#body + 1] = struct.pack('>I6I2', log.times[i], log.sums[i] - log.sums[i - 1])
  end
  return table.concat(body)
end

-- Write what changed. An unused budget is an absent key.
for k, r in pairs(dirty) do
  local s = slots[k]
  if s.used + s.prev == 0 then
    redis.call('DEL', KEYS[k])
  else
    local ttl, value
    if s.alg == FIXED then
      ttl = s.stop - now + SLACK
      value = struct.pack('>BBI6I7I6I6', s.alg, LAYOUT, s.ver, s.used, s.stop, s.length)
    elseif s.alg == SLIDING then
      ttl = s.stop - now + SLACK
      if s.used > 0 then
        local _, _, following = frame(r, s.length)
        ttl = ttl + following
      end
      value = struct.pack('>BBI6I7I7I6I6', s.alg, LAYOUT, s.ver, s.used, s.prev, s.stop, s.length)
    elseif s.alg == BUCKET then
      ttl = drain_time(s, r, s.used) + SLACK
      value = struct.pack('>BBI6I7I7I6', s.alg, LAYOUT, s.ver, s.used, s.rest, s.updated)
    else
      ttl = s.log.times[s.last] + r.window - now + SLACK
      value = struct.pack('>BBI6', s.alg, LAYOUT, s.ver) .. pack_log(s)
    end
    if r.ver < s.ver then ttl = max(ttl, redis.call('PTTL', KEYS[k])) end
    redis.call('SET', KEYS[k], value, 'PX', ttl)
  end
end

reply[2] = foreign
return cmsgpack.pack(reply)
