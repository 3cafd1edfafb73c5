package limit_test

import (
	"fmt"
	"time"

	"github.com/weir-rl/weir/pkg/limit"
)

// Two requests of cost 10 race for the 15 tokens that a bucket of 20 has left.
// It refills at 2 a second, so the loser waits for 5 tokens.
func ExampleApply() {
	rule := &limit.Params{Algorithm: limit.TokenBucket, Limit: 2, Window: 1000, Capacity: 20, OverdrawCap: 20}
	rule.Rate(2, 1000)
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()

	var state limit.State // an absent key: nothing was used
	for _, cost := range []int64{5, 10, 10} {
		var v limit.Verdict
		state, v = limit.Apply(state, rule, now, cost)
		fmt.Println(cost, v.Outcome, "remaining", v.Remaining, "retry", time.Duration(v.Retry)*time.Millisecond)
	}
	// Output:
	// 5 allow remaining 15 retry 0s
	// 10 allow remaining 5 retry 0s
	// 10 deny remaining 0 retry 2.5s
}

// A user's request meets the user's own rule and the tenant's, which is used
// up: the user's budget stays whole.
func ExampleEvaluate() {
	user := &limit.Params{Algorithm: limit.TokenBucket, Limit: 2, Window: 1000, Capacity: 20, OverdrawCap: 20}
	user.Rate(2, 1000)
	tenant := &limit.Params{Algorithm: limit.FixedWindow, Limit: 1000, Window: 60_000, Capacity: 1000, OverdrawCap: 1000}
	tenant.Rate(1000, 60_000)
	now := time.Date(2030, 1, 1, 12, 0, 30, 0, time.UTC).UnixMilli()

	slots := map[*limit.Params]*limit.Slot{
		user:   {},
		tenant: {State: limit.State{Algorithm: limit.FixedWindow, Used: 1000, End: now + 30_000, Length: 60_000}},
	}
	ask := limit.Ask{Checks: []limit.Check{
		{Params: user, Cost: 1, Kind: limit.Enforced},
		{Params: tenant, Cost: 1, Kind: limit.Enforced},
	}}
	limit.Evaluate(&ask, now, now+10, func(c *limit.Check) *limit.Slot { return slots[c.Params] })
	for _, c := range ask.Checks {
		fmt.Println(c.Verdict.Outcome, "remaining", c.Verdict.Remaining, "retry", c.Verdict.Retry, "write", slots[c.Params].Dirty != nil)
	}
	// Output:
	// allow remaining 20 retry 0 write false
	// deny remaining 0 retry 30000 write false
}

// The keys of a tenant's rules share a tag, so that a cluster keeps them in one
// slot; nothing of the principal can be read in them.
func ExampleScheme_Maker() {
	scheme := limit.Scheme{Secret: "s3cret", Namespace: "prod", TenantEntry: "tenant"}
	perUser := scheme.Maker("api", []limit.PathLevel{{Key: "tenant"}, {Key: "user"}}, "")
	perTenant := scheme.Maker("api", []limit.PathLevel{{Key: "tenant"}}, "")

	user := perUser.Key([]limit.Entry{{Key: "tenant", Value: "atlas"}, {Key: "user", Value: "U-17"}})
	tenant := perTenant.Key([]limit.Entry{{Key: "tenant", Value: "atlas"}})
	fmt.Printf("%s\n%s\n", user.Append(nil, scheme.Prefix), tenant.Append(nil, scheme.Prefix))
	// Output:
	// weir:1:{4JKBsJNnFKo}2ONVANymr3fkmoJpZubNbg
	// weir:1:{4JKBsJNnFKo}EdQPqjJlWO4f7TUb7hSqng
}
