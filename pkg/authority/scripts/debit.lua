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
--          big-endian; counts < 2^53, times in ms since the epoch; see limit.AppendState
--
-- Invariants: integers only, every product < 2^53 (the loader sees to it); nothing is written for a
-- denied, late, stale or unreadable request but refunds and what overdraws; no write without a TTL.

local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max
local FIXED, BUCKET, SLIDING, LOG, PERMITS = 70, 66, 83, 76, 67
local LAYOUT, MAX_LAYOUT, EXACT, SLACK = 1, 8, 2 ^ 53, 1000
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
  if alg == FIXED and #v == 27 then
    local ver, used, stop, length = struct.unpack('>I6I7I6I6', v, 3)
    if used < EXACT then return { alg = alg, ver = ver, used = used, stop = stop, length = length, rest = 0, updated = 0 } end
  elseif alg == BUCKET and #v == 28 then
    local ver, used, rest, updated = struct.unpack('>I6I7I7I6', v, 3)
    if used < EXACT and rest < EXACT then
      return { alg = alg, ver = ver, used = used, stop = 0, length = 0, rest = rest, updated = updated }
    end
  elseif alg == SLIDING and #v == 34 then
    local _, used, previous = struct.unpack('>I6I7I7', v, 3)
    if used < EXACT and previous < EXACT then return NEWER end -- known, but not decided here
  elseif alg == LOG and #v % 8 == 0 or alg == PERMITS and (#v - 8) % 22 == 0 then
    return NEWER -- likewise
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

-- convert gives the copy the form of the rule's algorithm.
local function convert(s, r)
  if s.alg == r.alg then return end
  if r.alg == BUCKET then
    s.used, s.rest, s.updated = min(s.used * 1000, r.most), 0, now
    s.stop, s.length = 0, 0
  else
    drain(s, r, true) -- a count has no highest level
    s.used, s.rest, s.updated = ceil(s.used / 1000), 0, 0
    s.stop, s.length = 0, 0
  end
  s.alg = r.alg
end

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
    s = { key = k, used = 0, stop = 0, length = 0, rest = 0, updated = 0 }
    -- A window that has passed counts 0; a state that counts 0 is an absent one.
    if state and state.used > 0 and (state.alg ~= FIXED or state.stop > now) then
      s.alg, s.ver, s.used, s.stop = state.alg, state.ver, state.used, state.stop
      s.length, s.rest, s.updated = state.length, state.rest, state.updated
    end
    copies[k] = s
  end
  local stop
  if r.alg == FIXED or s.alg == FIXED then
    stop = window_end(r)
    if not stop then return nil, STALE end
  end
  if not s.alg then
    s.alg, s.ver = r.alg, r.ver
    if r.alg == BUCKET then s.updated = now end
  end
  local older = r.ver < s.ver
  if not older then
    s.ver = r.ver
    convert(s, r)
  end
  if s.alg == BUCKET then
    drain(s, r, older)
    return s
  end
  -- A window of the rule's length that ends later than now's stays in force:
  -- the clock went back. One of another length carries its count into now's
  -- window, but not for an older rule, or two versions would flip the key.
  if s.stop == 0 or (s.length ~= r.length and not older) then
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
  return r.limit
end

local function fits(s, r, cost)
  return s.used + amount(s, cost) <= budget(s, r)
end

-- overdraw records a cost that did not fit: nothing more once a window is over
-- its limit, never more debt than the cap, and never less than before.
local function overdraw(s, r, cost)
  local before = s.used
  if s.alg == BUCKET then
    s.used = max(s.used, min(r.most, s.used + cost * 1000))
  elseif s.used <= r.limit then
    s.used = s.used + cost
  end
  if s.used ~= before then keep(s, r) end
end

-- refund gives back at most what was used.
local function refund(s, r, cost)
  local back = min(s.used, amount(s, cost))
  if back > 0 then
    s.used = s.used - back
    if s.used == 0 then s.rest = 0 end
    keep(s, r)
  end
end

local function answer(verdict, remaining, ms)
  reply[size + 1], reply[size + 2], reply[size + 3] = verdict, remaining, ms
  size = size + 3
end

local function allowed(s, r)
  local left = max(0, budget(s, r) - s.used)
  if s.alg == BUCKET then
    return answer(ALLOW, floor(left / 1000), drain_time(s, r, s.used))
  end
  answer(ALLOW, left, s.stop - now)
end

-- denied: need is the cost plus what earlier checks of the request took.
local function denied(s, r, need)
  local all = budget(s, r)
  local never = amount(s, need) > all
  local verdict = never and NEVER or DENY
  if s.alg == FIXED then return answer(verdict, 0, s.stop - now) end
  if never then return answer(verdict, 0, -1) end
  answer(verdict, 0, drain_time(s, r, s.used + amount(s, need) - all))
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
        keep(slot[j], rule[j])
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
          keep(s, r)
        end
        allowed(s, r)
      else
        if draws[j] then overdraw(s, r, cost[j]) end
        denied(s, r, cost[j])
      end
    end
  end
end

-- Write what changed. An unused budget is an absent key.
for k, r in pairs(dirty) do
  local s = slots[k]
  if s.used == 0 then
    redis.call('DEL', KEYS[k])
  else
    local ttl, value
    if s.alg == BUCKET then
      ttl = drain_time(s, r, s.used) + SLACK
      value = struct.pack('>BBI6I7I7I6', s.alg, LAYOUT, s.ver, s.used, s.rest, s.updated)
    else
      ttl = s.stop - now + SLACK
      value = struct.pack('>BBI6I7I6I6', s.alg, LAYOUT, s.ver, s.used, s.stop, s.length)
    end
    if r.ver < s.ver then ttl = max(ttl, redis.call('PTTL', KEYS[k])) end
    redis.call('SET', KEYS[k], value, 'PX', ttl)
  end
end

reply[2] = foreign
return cmsgpack.pack(reply)
