package authority

import "github.com/weir-rl/weir/pkg/limit"

// Semantics S3 to S8, S11, S16 to S18 and S21 for windows and buckets.

var windowScenarios = []scenario{
	{"a window admits its limit exactly", func(l *lab) {
		p := fixed(10, 10_000)
		l.at(epoch + 4_000)
		l.want(one(take(keyA, p, 9)), allowed(1, 6_000))
		l.want(one(take(keyA, p, 2)), denied(6_000))
		l.want(one(take(keyA, p, 1)), allowed(0, 6_000))
		l.want(one(take(keyA, p, 1)), denied(6_000))
		l.wantStored(keyA, windowState(10, epoch+10_000, 10_000), 7_000)
	}},
	{"a window ends at its end", func(l *lab) {
		p := fixed(10, 10_000)
		l.want(one(take(keyA, p, 10)), allowed(0, 10_000))
		l.at(epoch + 9_999)
		l.want(one(take(keyA, p, 1)), denied(1))
		l.at(epoch + 10_000)
		l.want(one(take(keyA, p, 1)), allowed(9, 10_000))
		l.wantStored(keyA, windowState(1, epoch+20_000, 10_000), 11_000)
	}},
	{"a cost above the limit has no retry", func(l *lab) {
		p := fixed(10, 10_000)
		l.want(one(take(keyA, p, 11)), never(10_000))
		l.wantAbsent(keyA)
		l.want(one(take(keyA, p, 1)), allowed(9, 10_000))
		l.want(one(take(keyA, p, 10)), denied(10_000))
	}},
	{"a peek denies over the limit only and writes nothing", func(l *lab) {
		p := fixed(10, 10_000)
		l.want(one(take(keyA, p, 0)), allowed(10, 10_000))
		l.wantAbsent(keyA)
		l.plant(keyA, windowState(10, epoch+10_000, 10_000), 77)
		l.want(one(take(keyA, p, 0)), allowed(0, 10_000))
		l.wantStored(keyA, windowState(10, epoch+10_000, 10_000), 77)
		l.plant(keyA, windowState(11, epoch+10_000, 10_000), 77)
		l.want(one(take(keyA, p, 0)), denied(10_000))
		l.wantStored(keyA, windowState(11, epoch+10_000, 10_000), 77)
	}},
}

var bucketScenarios = []scenario{
	{"a bucket admits its capacity and then its rate", func(l *lab) {
		p := bucket(20, 2, 1_000) // P-READ
		l.want(one(take(keyA, p, 20)), allowed(0, 10_000))
		l.wantStored(keyA, bucketState(20_000, 0, epoch), 11_000)
		l.want(one(take(keyA, p, 1)), denied(500))
		l.at(epoch + 499)
		l.want(one(take(keyA, p, 1)), denied(1))
		l.at(epoch + 500)
		l.want(one(take(keyA, p, 1)), allowed(0, 10_000))
		l.wantStored(keyA, bucketState(20_000, 0, epoch+500), 11_000)
	}},
	{"a wait is rounded up to the millisecond", func(l *lab) {
		p := bucket(10, 3, 1_000)
		l.want(one(take(keyA, p, 10)), allowed(0, 3_334))
		l.want(one(take(keyA, p, 1)), denied(334))
		l.wantStored(keyA, bucketState(10_000, 0, epoch), 4_334)
		l.at(epoch + 333)
		l.want(one(take(keyA, p, 1)), denied(1))
		l.at(epoch + 334)
		l.want(one(take(keyA, p, 1)), allowed(0, 3_333)) // 1,002 drained, 1,000 taken
	}},
	{"two costs of 10 race for 15 tokens", func(l *lab) {
		p := bucket(20, 2, 1_000) // P-EXPORT, failure F07
		l.plant(keyA, bucketState(5_000, 0, epoch), 60_000)
		a, b := &limit.Ask{Checks: one(take(keyA, p, 10))}, &limit.Ask{Checks: one(take(keyA, p, 10))}
		l.batch(l.now, timed{a, forever}, timed{b, forever})
		if got, want := a.Checks[0].Verdict, allowed(5, 7_500); got != want {
			l.Errorf("the first: %+v, want %+v", got, want)
		}
		if got, want := b.Checks[0].Verdict, denied(2_500); got != want {
			l.Errorf("the second: %+v, want %+v; Retry-After rounds it up to 3 s", got, want)
		}
		l.wantStored(keyA, bucketState(15_000, 0, epoch), 8_500)
	}},
	{"a bucket carries the remainder", func(l *lab) {
		p := bucket(100, 1, 7_000) // a seventh of a millitoken in a millisecond
		for n := range int64(6) {
			l.at(epoch + 3*n)
			if v := l.debit(take(keyA, p, 1))[0]; v.Outcome != limit.Allow {
				l.Errorf("debit %d: %+v, want it allowed", n, v)
			}
		}
		// 15 ms have drained 15/7 millitokens.
		l.wantStored(keyA, bucketState(6_000-2, 1, epoch+15), (6_000-2)*7-1+1_000)
		l.want(one(take(keyA, p, 0)), allowed(94, (6_000-2)*7-1))
		l.want(one(take(keyA, p, 95)), denied((5_998+95_000-100_000)*7-1))
	}},
	{"a remainder of another denominator counts 0", func(l *lab) {
		p := bucket(100, 1, 7_000)
		l.plant(keyA, bucketState(6_000, 7, epoch), 60_000)
		l.want(one(take(keyA, p, 0)), allowed(94, 42_000))
		l.want(one(take(keyA, p, 1)), allowed(93, 49_000))
		l.wantStored(keyA, bucketState(7_000, 0, epoch), 50_000)
		l.plant(keyA, bucketState(6_000, 6, epoch), 60_000)
		l.want(one(take(keyA, p, 1)), allowed(93, 48_994))
		l.wantStored(keyA, bucketState(7_000, 6, epoch), 49_994)
	}},
	{"a bucket is never fuller than full", func(l *lab) {
		p := bucket(100, 1, 7_000)
		l.plant(keyA, bucketState(6_000, 6, epoch), 10_000_000)
		l.at(epoch + 41_995) // what it needs is 42,000, of which the remainder has 6
		l.want(one(take(keyA, p, 1)), allowed(99, 7_000))
		l.wantStored(keyA, bucketState(1_000, 0, epoch+41_995), 8_000)
		l.plant(keyA, bucketState(6_000, 0, epoch), 10_000_000)
		l.at(epoch + 9_000_000)
		l.want(one(take(keyA, p, 1)), allowed(99, 7_000))
		l.wantStored(keyA, bucketState(1_000, 0, epoch+9_000_000), 8_000)
	}},
	{"a cost above the capacity has no retry", func(l *lab) {
		p := bucket(10, 1, 1_000)
		l.want(one(take(keyA, p, 11)), never(-1))
		l.want(one(take(keyA, p, 1)), allowed(9, 1_000))
		l.want(one(take(keyA, p, 10)), denied(1_000))
	}},
	{"a peek at a bucket writes nothing", func(l *lab) {
		p := bucket(10, 1, 1_000)
		l.plant(keyA, bucketState(10_000, 0, epoch-500), 77_000)
		l.want(one(take(keyA, p, 0)), allowed(0, 9_500))
		l.wantStored(keyA, bucketState(10_000, 0, epoch-500), 77_000)
		l.plant(keyA, bucketState(10_501, 0, epoch-500), 77_000)
		l.want(one(take(keyA, p, 0)), denied(1))
		l.wantStored(keyA, bucketState(10_501, 0, epoch-500), 77_000)
	}},
}

var requestScenarios = []scenario{
	{"two checks of one key add up", func(l *lab) {
		p := fixed(10, 10_000)
		l.want([]limit.Check{take(keyA, p, 6), take(keyA, p, 5)}, allowed(10, 10_000), never(10_000))
		l.wantAbsent(keyA)
		l.want([]limit.Check{take(keyA, p, 6), take(keyA, p, 4)}, allowed(0, 10_000), allowed(0, 10_000))
		l.wantStored(keyA, windowState(10, epoch+10_000, 10_000), 11_000)
	}},
	{"a retry waits for what earlier checks took too", func(l *lab) {
		p := bucket(10, 1, 1_000)
		l.want(one(take(keyB, p, 4)), allowed(6, 4_000))
		l.want([]limit.Check{take(keyB, p, 5), take(keyB, p, 3)}, allowed(6, 4_000), denied(2_000))
		l.want([]limit.Check{take(keyB, p, 5), take(keyB, p, 6)}, allowed(6, 4_000), never(-1))
		l.wantStored(keyB, bucketState(4_000, 0, epoch), 5_000)
	}},
	{"a denied request takes nothing", func(l *lab) {
		p, full := bucket(20, 2, 1_000), fixed(1, 10_000)
		l.want(one(take(keyB, full, 1)), allowed(0, 10_000))
		l.want([]limit.Check{take(keyA, p, 5), take(keyB, full, 1)}, allowed(20, 0), denied(10_000))
		l.wantAbsent(keyA)
		l.want([]limit.Check{take(keyB, full, 1), take(keyA, p, 5)}, denied(10_000), allowed(20, 0))
		l.wantAbsent(keyA)
		l.wantStored(keyB, windowState(1, epoch+10_000, 10_000), 11_000)
	}},
	{"a user's bucket stays full while the tenant rule denies", func(l *lab) {
		user, tenant := bucket(20, 2, 1_000), fixed(1_000, 60_000) // U-17, failure F08
		l.want(one(take(keyB, tenant, 1_000)), allowed(0, 60_000))
		for i := range int64(150) { // 5 a second for 30 s
			l.at(epoch + i*200)
			l.want([]limit.Check{take(keyA, user, 1), take(keyB, tenant, 1)}, allowed(20, 0), denied(60_000-i*200))
		}
		l.wantAbsent(keyA)
	}},
	{"a plain denial writes nothing", func(l *lab) {
		p := fixed(10, 10_000)
		l.plant(keyA, windowState(8, epoch+10_000, 10_000), 77)
		l.want(one(take(keyA, p, 3)), denied(10_000))
		l.wantStored(keyA, windowState(8, epoch+10_000, 10_000), 77)
	}},
	{"quota checks deny only all together", func(l *lab) {
		p := fixed(10, 10_000)
		quotas := func(a, b int64) []limit.Check {
			return []limit.Check{check(limit.Quota, keyA, p, a), check(limit.Quota, keyB, p, b)}
		}
		l.want(quotas(10, 3), allowed(0, 10_000), allowed(7, 10_000))
		l.want(quotas(1, 3), denied(10_000), allowed(4, 10_000))
		l.wantStored(keyA, windowState(10, epoch+10_000, 10_000), 11_000)
		l.wantStored(keyB, windowState(6, epoch+10_000, 10_000), 11_000)
		l.want(quotas(1, 5), denied(10_000), denied(10_000))
		l.wantStored(keyB, windowState(6, epoch+10_000, 10_000), 11_000)
		l.want(append(one(take(keyC, p, 2)), quotas(1, 5)...), allowed(10, 10_000), denied(10_000), denied(10_000))
		l.wantAbsent(keyC)
	}},
	{"shadow checks never deny and come last", func(l *lab) {
		p := fixed(10, 10_000)
		shadow := check(limit.Shadow, keyB, p, 7)
		l.want([]limit.Check{take(keyA, p, 6), shadow}, allowed(4, 10_000), allowed(3, 10_000))
		l.want([]limit.Check{take(keyA, p, 1), shadow}, allowed(3, 10_000), denied(10_000))
		l.wantStored(keyA, windowState(7, epoch+10_000, 10_000), 11_000)
		l.wantStored(keyB, windowState(7, epoch+10_000, 10_000), 11_000)
		l.want([]limit.Check{take(keyA, p, 4), check(limit.Shadow, keyC, p, 1)}, denied(10_000), notEvaluated)
		l.wantAbsent(keyC)
	}},
	{"a refund gives back at most what was used", func(l *lab) {
		p := fixed(10, 10_000)
		refund := func(n int64) []limit.Check { return one(check(limit.Refund, keyA, p, n)) }
		l.want(refund(5), allowed(10, 10_000))
		l.wantAbsent(keyA)
		l.want(one(take(keyA, p, 8)), allowed(2, 10_000))
		l.want(refund(3), allowed(5, 10_000))
		l.wantStored(keyA, windowState(5, epoch+10_000, 10_000), 11_000)
		l.want(refund(6), allowed(10, 10_000))
		l.wantAbsent(keyA)
	}},
	{"refunds go first and stay", func(l *lab) {
		p := bucket(10, 1, 7_000)
		l.plant(keyA, bucketState(9_000, 3, epoch), 100_000)
		l.want([]limit.Check{check(limit.Refund, keyA, p, 4), take(keyA, p, 6)}, allowed(5, 34_997), denied(6_997))
		l.wantStored(keyA, bucketState(5_000, 3, epoch), 35_997)
		l.want([]limit.Check{check(limit.Refund, keyA, p, 5), take(keyA, p, 2)}, allowed(8, 14_000), allowed(8, 14_000))
		l.wantStored(keyA, bucketState(2_000, 0, epoch), 15_000)
	}},
	{"a request that was denied elsewhere takes nothing", func(l *lab) {
		p := fixed(10, 10_000)
		l.wantAsk(&limit.Ask{Denied: true, Checks: []limit.Check{
			take(keyA, p, 1), check(limit.Quota, keyB, p, 1), check(limit.Shadow, keyC, p, 1),
		}}, forever, allowed(10, 10_000), allowed(10, 10_000), notEvaluated)
		l.wantAbsent(keyA)
		l.wantAbsent(keyB)
		l.wantAbsent(keyC)
	}},
	{"a request that was denied elsewhere gives back and overdraws, nothing else", func(l *lab) {
		p := fixed(10, 10_000)
		l.plant(keyA, windowState(8, epoch+10_000, 10_000), 77)
		l.wantAsk(&limit.Ask{Denied: true, Checks: []limit.Check{
			check(limit.Refund, keyA, p, 2), take(keyB, p, 1), overdraws(take(keyC, p, 11)), check(limit.Shadow, keyB, p, 1),
		}}, forever, allowed(4, 10_000), allowed(10, 10_000), never(10_000), notEvaluated)
		l.wantStored(keyA, windowState(6, epoch+10_000, 10_000), 11_000)
		l.wantAbsent(keyB)
		l.wantStored(keyC, windowState(11, epoch+10_000, 10_000), 11_000)
	}},
}

var overdrawScenarios = []scenario{
	{"a window takes one cost that does not fit, and nothing after it", func(l *lab) {
		p := fixed(10, 10_000)
		l.want(one(take(keyA, p, 10)), allowed(0, 10_000))
		l.want(one(overdraws(take(keyA, p, 5))), denied(10_000))
		l.wantStored(keyA, windowState(15, epoch+10_000, 10_000), 11_000)
		l.want(one(overdraws(take(keyA, p, 5))), denied(10_000))
		l.wantStored(keyA, windowState(15, epoch+10_000, 10_000), 11_000)
		l.want(one(overdraws(take(keyB, p, 25))), never(10_000))
		l.wantStored(keyB, windowState(25, epoch+10_000, 10_000), 11_000)
	}},
	{"a bucket's debt ends at its cap", func(l *lab) {
		p := edit(bucket(10, 1, 1_000), func(p *limit.Params) { p.OverdrawCap = 5 })
		l.want(one(overdraws(take(keyA, p, 8))), allowed(2, 8_000))
		l.want(one(overdraws(take(keyA, p, 3))), denied(4_000))
		l.wantStored(keyA, bucketState(11_000, 0, epoch), 12_000)
		l.want(one(overdraws(take(keyA, p, 9))), denied(14_000))
		l.wantStored(keyA, bucketState(15_000, 0, epoch), 16_000)
		l.want(one(overdraws(take(keyA, p, 0))), denied(5_000))
		l.want(one(take(keyA, p, 1)), denied(6_000))
	}},
	{"what overdraws is recorded when others deny, what allows is not", func(l *lab) {
		p := fixed(10, 10_000)
		l.plant(keyA, windowState(10, epoch+10_000, 10_000), 77)
		l.want([]limit.Check{take(keyA, p, 1), overdraws(take(keyB, p, 12)), overdraws(take(keyC, p, 4))},
			denied(10_000), never(10_000), allowed(10, 10_000))
		l.wantStored(keyA, windowState(10, epoch+10_000, 10_000), 77)
		l.wantStored(keyB, windowState(12, epoch+10_000, 10_000), 11_000)
		l.wantAbsent(keyC)
	}},
	{"a quota check without room records only by overdraw", func(l *lab) {
		p := fixed(10, 10_000)
		l.want([]limit.Check{
			overdraws(check(limit.Quota, keyA, p, 12)), check(limit.Quota, keyB, p, 12), check(limit.Quota, keyC, p, 1),
		}, never(10_000), never(10_000), allowed(9, 10_000))
		l.wantStored(keyA, windowState(12, epoch+10_000, 10_000), 11_000)
		l.wantAbsent(keyB)
		l.wantStored(keyC, windowState(1, epoch+10_000, 10_000), 11_000)
	}},
	{"a shadow check overdraws too", func(l *lab) {
		p := fixed(10, 10_000)
		l.want(one(overdraws(check(limit.Shadow, keyA, p, 12))), never(10_000))
		l.wantStored(keyA, windowState(12, epoch+10_000, 10_000), 11_000)
	}},
}
