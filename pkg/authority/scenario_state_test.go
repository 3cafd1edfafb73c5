package authority

import "github.com/weir-rl/weir/pkg/limit"

// Semantics S13 to S16 and S23: time, forms and versions of what is stored.

// calendar returns the rule with calendar windows between these instants.
func calendar(p *limit.Params, code uint8, bounds [3]int64) *limit.Params {
	return edit(p, func(p *limit.Params) {
		p.CalendarCode = code
		p.Bounds = func(int64) [3]int64 { return bounds }
	})
}

var timeScenarios = []scenario{
	{"a step back leaves the window in force until its end", func(l *lab) {
		p := fixed(10, 10_000)
		l.at(epoch + 5_000)
		l.want(one(take(keyA, p, 8)), allowed(2, 5_000))
		l.at(epoch - 5_000)
		l.want(one(take(keyA, p, 3)), denied(15_000))
		l.want(one(take(keyA, p, 1)), allowed(1, 15_000))
		l.wantStored(keyA, windowState(9, epoch+10_000, 10_000), 16_000)
		l.at(epoch + 9_999)
		l.want(one(take(keyA, p, 2)), denied(1))
		l.at(epoch + 10_000)
		l.want(one(take(keyA, p, 2)), allowed(8, 10_000))
	}},
	{"a step back neither fills a bucket nor freezes it for longer", func(l *lab) {
		p := bucket(20, 2, 1_000)
		l.want(one(take(keyA, p, 20)), allowed(0, 10_000))
		l.at(epoch - 5_000)
		l.want(one(take(keyA, p, 1)), denied(5_500))
		l.want(one(check(limit.Refund, keyA, p, 2)), allowed(2, 14_000))
		l.wantStored(keyA, bucketState(18_000, 0, epoch), 15_000)
		l.want(one(take(keyA, p, 1)), allowed(1, 14_500))
		l.wantStored(keyA, bucketState(19_000, 0, epoch), 15_500)
		l.at(epoch + 1_000)
		l.want(one(take(keyA, p, 3)), allowed(0, 10_000))
		l.wantStored(keyA, bucketState(20_000, 0, epoch+1_000), 11_000)
	}},
	{"a step forward fills a bucket by the step", func(l *lab) {
		p := bucket(20, 2, 1_000)
		l.want(one(take(keyA, p, 20)), allowed(0, 10_000))
		l.at(epoch + 3_000)
		l.want(one(take(keyA, p, 7)), denied(500))
		l.want(one(take(keyA, p, 6)), allowed(0, 10_000))
	}},
	{"nothing is debited after the not-after, its neighbours are", func(l *lab) {
		p := fixed(10, 10_000)
		asks := make([]timed, 4)
		for i, notAfter := range []int64{epoch - 1, epoch, epoch + 1, 0} {
			asks[i] = timed{&limit.Ask{Checks: one(take(keyNumber(i), p, 1))}, notAfter}
		}
		asks[0].Checks = append(asks[0].Checks, overdraws(take(keyA, p, 11)), check(limit.Shadow, keyA, p, 1))
		l.batch(l.now, asks...)
		for i, want := range []limit.Verdict{class(limit.ClassLate), allowed(9, 10_000), allowed(9, 10_000), class(limit.ClassLate)} {
			for j, got := range verdicts(asks[i].Ask) {
				if got != want {
					l.Errorf("request %d, check %d: verdict %+v, want %+v", i, j, got, want)
				}
			}
		}
		for i, stored := range []bool{false, true, true, false} {
			if stored {
				l.wantStored(keyNumber(i), windowState(1, epoch+10_000, 10_000), 11_000)
			} else {
				l.wantAbsent(keyNumber(i))
			}
		}
	}},
	{"a calendar window lies between the boundaries that were sent", func(l *lab) {
		p := calendar(fixed(10, 86_400_000), 3, [3]int64{epoch - 1_000, epoch + 2_000, epoch + 5_000})
		l.want(one(take(keyA, p, 10)), allowed(0, 2_000))
		l.wantStored(keyA, windowState(10, epoch+2_000, 3), 3_000)
		l.at(epoch + 1_999)
		l.want(one(take(keyA, p, 1)), denied(1))
		l.at(epoch + 2_000)
		l.want(one(take(keyA, p, 1)), allowed(9, 3_000))
		l.wantStored(keyA, windowState(1, epoch+5_000, 3), 4_000)
		l.at(epoch + 4_999)
		l.want(one(take(keyA, p, 1)), allowed(8, 1))
	}},
	{"outside of the boundaries the answer is stale, for the whole request", func(l *lab) {
		p := calendar(fixed(10, 86_400_000), 3, [3]int64{epoch - 1_000, epoch + 2_000, epoch + 5_000})
		for _, at := range []int64{epoch - 1_001, epoch + 5_000} {
			l.at(at)
			stale := class(limit.ClassStale)
			l.want([]limit.Check{take(keyA, fixed(10, 10_000), 1), take(keyB, p, 1)}, stale, stale)
			l.wantAbsent(keyA)
			l.wantAbsent(keyB)
		}
		l.at(epoch - 1_000)
		l.want(one(take(keyB, p, 1)), allowed(9, 3_000))
	}},
}

var formScenarios = []scenario{
	{"a foreign string is overwritten and counted", func(l *lab) {
		p := fixed(10, 10_000)
		for i, text := range []string{
			"17", "short", "a text that is long enough!", "F\x00aaaaaaaaaaaaaaaaaaaaaaaaa", "F\taaaaaaaaaaaaaaaaaaaaaaaaa",
			"Q\x01aaaaaaaaaaaaaaaaaaaaaaaaa", "F\x01too short for one", "B\x01aaaaaa\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00123456",
			"B\x01aaaaaa\x00\x00\x00\x00\x00\x00\x00\x20\x00\x00\x00\x00\x00\x00123456",
			"S\x01aaaaaa\x00\x00\x00\x00\x00\x00\x00\x20\x00\x00\x00\x00\x00\x00123456123456",
			"F\x01aaaaaa\x20\x00\x00\x00\x00\x00\x00123456123456",
		} {
			k := keyNumber(i)
			l.plantBytes(k, []byte(text), 0)
			a := &limit.Ask{Checks: one(take(k, p, 3))}
			if _, foreign := l.batch(l.now, timed{a, forever}); foreign != 1 {
				l.Errorf("%q: %d foreign strings were counted, want 1", text, foreign)
			}
			if got, want := a.Checks[0].Verdict, allowed(7, 10_000); got != want {
				l.Errorf("%q: verdict %+v, want %+v", text, got, want)
			}
			l.wantStored(k, windowState(3, epoch+10_000, 10_000), 11_000)
		}
		a := &limit.Ask{Checks: one(take(keyA, p, 3))}
		if _, foreign := l.batch(l.now, timed{a, forever}); foreign != 0 {
			l.Errorf("%d foreign strings were counted in a state of ours, want 0", foreign)
		}
	}},
	{"another type is overwritten", func(l *lab) {
		p := fixed(10, 10_000)
		l.do("RPUSH", keyName(keyA), "x")
		l.do("HSET", keyName(keyB), "x", "y")
		l.want([]limit.Check{take(keyA, p, 3), take(keyB, p, 3)}, allowed(7, 10_000), allowed(7, 10_000))
		l.wantStored(keyA, windowState(3, epoch+10_000, 10_000), 11_000)
		l.wantStored(keyB, windowState(3, epoch+10_000, 10_000), 11_000)
	}},
	{"a newer layout is untouched and its neighbours undecided", func(l *lab) {
		p := fixed(10, 10_000)
		now := l.now
		for i, value := range []string{
			"F\x02anything that a later release writes", "Z\x08......",
			string(limit.AppendState(nil, &limit.State{Algorithm: limit.Concurrency, Permits: []limit.Permit{{Expiry: now}}})),
		} {
			l.clear()
			l.plantBytes(keyB, []byte(value), 77)
			l.want([]limit.Check{take(keyA, p, 1), overdraws(take(keyB, p, 11)), take(keyC, p, 1)},
				class(limit.ClassNone), class(limit.ClassLayout), class(limit.ClassNone))
			l.wantAbsent(keyA)
			l.wantAbsent(keyC)
			if got := l.do("GET", keyName(keyB)); got != value {
				l.Errorf("case %d: the key holds %q, want %q as before", i, got, value)
			}
			if got := l.do("PTTL", keyName(keyB)); got != int64(77) {
				l.Errorf("case %d: TTL = %v, want 77 as before", i, got)
			}
			l.want(one(take(keyA, p, 1)), allowed(9, 10_000))
		}
	}},
	{"changed numbers keep what was used", func(l *lab) {
		l.want(one(take(keyA, fixed(10, 10_000), 8)), allowed(2, 10_000))
		l.want(one(take(keyA, fixed(20, 10_000), 8)), allowed(4, 10_000))
		l.want(one(take(keyA, fixed(12, 10_000), 1)), denied(10_000))
		l.want(one(take(keyB, bucket(10, 1, 1_000), 8)), allowed(2, 8_000))
		l.want(one(take(keyB, bucket(10, 2, 1_000), 1)), allowed(1, 4_500))
		l.want(one(take(keyB, bucket(4, 2, 1_000), 1)), denied(2_500))
		l.wantStored(keyB, bucketState(9_000, 0, epoch), 5_500)
		l.plant(keyC, bucketState(19_000, 0, epoch), 77_000)
		l.want(one(take(keyC, bucket(4, 2, 1_000), 0)), denied(2_000)) // 8 is the most that this rule can owe
	}},
	{"another length of the window carries the count into now's window", func(l *lab) {
		l.at(epoch + 1_000)
		l.want(one(take(keyA, fixed(10, 10_000), 8)), allowed(2, 9_000))
		l.want(one(take(keyA, fixed(10, 60_000), 3)), denied(59_000))
		l.want(one(take(keyA, fixed(10, 60_000), 1)), allowed(1, 59_000))
		l.wantStored(keyA, windowState(9, epoch+60_000, 60_000), 60_000)
		l.want(one(take(keyA, fixed(10, 10_000), 1)), allowed(0, 9_000))
		l.wantStored(keyA, windowState(10, epoch+10_000, 10_000), 10_000)
	}},
	{"a window becomes a bucket in place", func(l *lab) {
		l.want(one(take(keyA, fixed(10, 10_000), 8)), allowed(2, 10_000))
		l.at(epoch + 4_000)
		l.want(one(take(keyA, bucket(10, 1, 1_000), 3)), denied(1_000))
		l.wantStored(keyA, windowState(8, epoch+10_000, 10_000), 7_000)
		l.want(one(take(keyA, bucket(10, 1, 1_000), 2)), allowed(0, 10_000))
		l.wantStored(keyA, bucketState(10_000, 0, epoch+4_000), 11_000)
		small := bucket(2, 1, 1_000)
		l.plant(keyB, windowState(8, epoch+10_000, 10_000), 7_000)
		l.want(one(take(keyB, small, 1)), denied(3_000)) // 4 is the most that this rule can owe
		l.want(one(check(limit.Refund, keyB, small, 1)), allowed(0, 3_000))
		l.wantStored(keyB, bucketState(3_000, 0, epoch+4_000), 4_000)
		l.at(epoch + 5_000)
		l.plant(keyC, windowState(8, epoch+5_000, 10_000), 77)
		l.want(one(take(keyC, bucket(10, 1, 1_000), 1)), allowed(9, 1_000)) // its window has passed
	}},
	{"a bucket becomes a window in place", func(l *lab) {
		p := edit(fixed(10, 10_000), func(p *limit.Params) { p.Num, p.Den = 1, 3 })
		l.plant(keyA, bucketState(8_000, 0, epoch-3), 60_000)
		l.want(one(take(keyA, p, 1)), allowed(1, 10_000)) // 7,999 millitokens are 8: used is rounded up
		l.wantStored(keyA, windowState(9, epoch+10_000, 10_000), 11_000)
		l.plant(keyC, bucketState(30_000, 0, epoch), 60_000) // more than this rule's bucket can owe
		l.want(one(overdraws(take(keyC, p, 0))), denied(10_000))
		l.want(one(check(limit.Refund, keyC, p, 5)), allowed(0, 10_000))
		l.wantStored(keyC, windowState(25, epoch+10_000, 10_000), 11_000)
		l.plant(keyB, bucketState(8_000, 0, epoch-3_000), 60_000)
		l.want(one(take(keyB, p, 1)), allowed(2, 10_000)) // it has drained 1,000 millitokens on the way
		l.want(one(take(keyB, p, 3)), denied(10_000))
	}},
	{"a key that an earlier request emptied is gone for the next", func(l *lab) {
		// The clock went back, so the window in force lies ahead of now's.
		l.plant(keyA, atVersion(5, windowState(4, epoch+30_000, 10_000)), 77)
		p := version(3, fixed(10, 10_000))
		a, b := &limit.Ask{Checks: one(check(limit.Refund, keyA, p, 4))}, &limit.Ask{Checks: one(take(keyA, p, 1))}
		l.batch(l.now, timed{a, forever}, timed{b, forever})
		if got, want := b.Checks[0].Verdict, allowed(9, 10_000); got != want {
			l.Errorf("verdict %+v, want %+v", got, want)
		}
		l.wantStored(keyA, atVersion(3, windowState(1, epoch+10_000, 10_000)), 11_000)
	}},
}

var versionScenarios = []scenario{
	{"an equal or higher version gives the state its form", func(l *lab) {
		l.plant(keyA, atVersion(5, windowState(8, epoch+10_000, 10_000)), 77)
		l.want(one(take(keyA, version(5, bucket(10, 1, 1_000)), 1)), allowed(1, 9_000))
		l.wantStored(keyA, atVersion(5, bucketState(9_000, 0, epoch)), 10_000)
		l.want(one(take(keyA, version(1<<48-1, fixed(10, 10_000)), 1)), allowed(0, 10_000))
		l.wantStored(keyA, atVersion(1<<48-1, windowState(10, epoch+10_000, 10_000)), 11_000)
	}},
	{"a lower version leaves form and version", func(l *lab) {
		l.plant(keyA, atVersion(5, bucketState(8_000, 0, epoch)), 7_700)
		l.want(one(take(keyA, version(4, fixed(10, 1_000)), 1)), allowed(1, 900)) // 10 a second drain it
		l.wantStored(keyA, atVersion(5, bucketState(9_000, 0, epoch)), 7_700)
		l.want(one(take(keyA, version(4, fixed(10, 1_000)), 2)), denied(100))
		l.plant(keyB, atVersion(5, windowState(8, epoch+10_000, 10_000)), 77)
		l.want(one(take(keyB, version(4, bucket(20, 9, 1_000)), 1)), allowed(0, 10_000))
		l.wantStored(keyB, atVersion(5, windowState(9, epoch+10_000, 10_000)), 11_000)
		l.plant(keyC, atVersion(5, windowState(8, epoch+10_000, 10_000)), 77)
		l.want(one(take(keyC, version(4, fixed(10, 60_000)), 1)), allowed(1, 10_000))
		l.wantStored(keyC, atVersion(5, windowState(9, epoch+10_000, 10_000)), 11_000)
	}},
	{"a lower version never shortens the TTL", func(l *lab) {
		l.plant(keyA, atVersion(5, bucketState(8_000, 0, epoch)), 3_600_000)
		l.want(one(take(keyA, version(4, bucket(10, 10, 1_000)), 1)), allowed(1, 900))
		l.wantStored(keyA, atVersion(5, bucketState(9_000, 0, epoch)), 3_600_000)
		l.plant(keyB, atVersion(5, bucketState(8_000, 0, epoch)), 77)
		l.want(one(take(keyB, version(4, bucket(10, 1, 1_000)), 1)), allowed(1, 9_000))
		l.wantStored(keyB, atVersion(5, bucketState(9_000, 0, epoch)), 10_000)
		l.plant(keyC, atVersion(5, bucketState(8_000, 0, epoch)), 3_600_000)
		l.want(one(take(keyC, version(5, bucket(10, 10, 1_000)), 1)), allowed(1, 900))
		l.wantStored(keyC, atVersion(5, bucketState(9_000, 0, epoch)), 1_900)
	}},
	{"of the rules that change a state the newest gives the TTL", func(l *lab) {
		newer, older := version(5, bucket(10, 1, 1_000)), version(4, bucket(10, 10, 1_000))
		for _, order := range [][2]*limit.Params{{newer, older}, {older, newer}} {
			l.clear()
			l.batch(l.now,
				timed{&limit.Ask{Checks: one(take(keyA, order[0], 4))}, forever},
				timed{&limit.Ask{Checks: one(take(keyA, order[1], 4))}, forever})
			l.wantStored(keyA, atVersion(5, bucketState(8_000, 0, epoch)), 9_000)
		}
	}},
	{"of two revisions in one request the last that changes the state gives the TTL", func(l *lab) {
		fast, slow := bucket(10, 1, 1_000), bucket(47, 1, 10_000)
		l.plant(keyA, bucketState(10_000, 0, epoch), 60_000)
		l.want([]limit.Check{overdraws(check(limit.Quota, keyA, fast, 1)), check(limit.Quota, keyA, slow, 1)},
			denied(3_000), allowed(35, 120_000))
		l.wantStored(keyA, bucketState(12_000, 0, epoch), 121_000)
	}},
	{"a lower version keeps the debt that only the newer rule allows", func(l *lab) {
		p := version(4, edit(bucket(10, 1, 1_000), func(p *limit.Params) { p.OverdrawCap = 5 })) // at most 15
		l.plant(keyA, atVersion(5, bucketState(30_000, 0, epoch-1_000)), 60_000)
		l.want(one(overdraws(take(keyA, p, 1))), denied(15_000))
		l.wantStored(keyA, atVersion(5, bucketState(30_000, 0, epoch-1_000)), 60_000)
		l.want(one(check(limit.Refund, keyA, p, 1)), allowed(0, 15_000))
		l.wantStored(keyA, atVersion(5, bucketState(28_000, 0, epoch)), 60_000)
	}},
}
