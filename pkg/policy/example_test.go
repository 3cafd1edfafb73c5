package policy_test

import (
	"fmt"

	"github.com/weir-rl/weir/pkg/limit"
	"github.com/weir-rl/weir/pkg/policy"
)

func Example() {
	file := policy.Parse("northstar.yaml", []byte(`
domain: northstar
descriptors:
  - key: tenant
    rate_limit: {unit: minute, requests_per_unit: 1000, on_store_failure: closed}
  - key: tenant
    value: birch
    rate_limit: {unit: minute, requests_per_unit: 50, on_store_failure: closed}
`))
	set, faults := policy.Compile([]*policy.File{file}, policy.Options{})
	if err := faults.Err(); err != nil {
		fmt.Println(err)
		return
	}
	for _, tenant := range []string{"atlas", "birch"} {
		for _, rule := range set.Domain("northstar").Match([]limit.Entry{{Key: "tenant", Value: tenant}}) {
			fmt.Println(rule.ID, rule.Params.Limit)
		}
	}
	// Output:
	// tenant 1000
	// tenant_birch 50
}

func ExampleFaults() {
	file := policy.Parse("northstar.yaml", []byte(`domain: northstar
descriptors:
  - key: user
    rate_limit: {unit: fortnight, requests_per_unit: "20"}
`))
	_, faults := policy.Compile([]*policy.File{file}, policy.Options{})
	fmt.Println(faults.Err())
	// Output:
	// northstar.yaml:4:24: descriptors[0].rate_limit.unit: invalid rate limit unit 'fortnight'; use second, minute, hour, day, week, month or year
	// northstar.yaml:4:54: descriptors[0].rate_limit.requests_per_unit: error loading config file: cannot unmarshal !!str `20` into uint32; write a whole number from 0 to 4294967295, without quotes
}
