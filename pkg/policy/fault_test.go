package policy_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-rl/weir/pkg/policy"
)

// rateLimit is a file with one descriptor and this rate_limit.
func rateLimit(fields string) string {
	return "domain: d\ndescriptors:\n  - key: k\n    rate_limit: {" + fields + "}\n"
}

// rateLimits is a file with one descriptor and this list of rate_limits.
func rateLimits(limits ...string) string {
	return "domain: d\ndescriptors:\n  - key: k\n    rate_limits:\n      - {" + strings.Join(limits, "}\n      - {") + "}\n"
}

// provocations has a file for each way to be wrong. The place is line:column
// and path; the message need only contain the text, which is the peer's own
// where the peer refuses the file too. That every code is raised is held by
// TestEveryCodeAlone.
var provocations = []struct {
	name     string
	code     policy.Code
	severity policy.Severity
	yaml     string
	place    string
	message  string
}{
	{"unterminated quote", policy.CodeSyntax, policy.SeverityError, "domain: d\ndescriptors: \"\n", "2:1", "error loading config file: yaml: line 2: found unexpected end of stream"},
	{"broken indentation", policy.CodeSyntax, policy.SeverityError, "domain: d\ndescriptors:\n  - key: a\n value: b\n", "", "error loading config file: yaml: line "},
	{"invalid UTF-8", policy.CodeSyntax, policy.SeverityError, "domain: d\n# \xff\n", "2:3", "error loading config file: yaml: "},
	{"unknown anchor", policy.CodeSyntax, policy.SeverityError, "domain: *x\n", "1:1", "unknown anchor 'x' referenced"},
	{"too deep", policy.CodeTooDeep, policy.SeverityError, "domain: " + strings.Repeat("[", 200) + strings.Repeat("]", 200), "1:136", "nested deeper than 128"},
	{"a billion laughs", policy.CodeTooManyNodes, policy.SeverityError, laughs(9), "", "excessive aliasing"},
	{"a billion merges", policy.CodeTooManyNodes, policy.SeverityError, mergedLaughs(9), "", "excessive aliasing"},
	{"anchor in itself", policy.CodeAliasLoop, policy.SeverityError, "domain: d\ndescriptors: &a [{key: k, descriptors: *a}]\n", "2:40 descriptors[0].descriptors", "anchor 'a' value contains itself"},
	{"merge of a scalar", policy.CodeBadMerge, policy.SeverityError, "domain: d\n<<: 5\n", "2:1", "map merge requires map or sequence of maps as the value"},
	{"merge of a list of scalars", policy.CodeBadMerge, policy.SeverityError, "domain: d\ndescriptors:\n  - key: k\n    <<: [5]\n", "4:5 descriptors[0]", "map merge requires map or sequence of maps as the value"},
	{"tag that does not fit", policy.CodeBadTag, policy.SeverityError, rateLimit("unit: !!int abc"), "4:24 descriptors[0].rate_limit.unit", "cannot decode !!str `abc` as a !!int"},
	{"root is a list", policy.CodeWrongType, policy.SeverityError, "- a\n", "1:1", "cannot unmarshal !!seq into a map with domain and descriptors"},
	{"root is text", policy.CodeWrongType, policy.SeverityError, "abc\n", "1:1", "cannot unmarshal !!str `abc` into"},
	{"domain is a map", policy.CodeWrongType, policy.SeverityError, "domain: {}\n", "1:9 domain", "cannot unmarshal !!map into string"},
	{"descriptors is text", policy.CodeWrongType, policy.SeverityError, "domain: d\ndescriptors: a\n", "2:14 descriptors", "cannot unmarshal !!str `a` into"},
	{"descriptors is a map", policy.CodeWrongType, policy.SeverityError, "domain: d\ndescriptors: {key: a}\n", "2:14 descriptors", "cannot unmarshal !!map into"},
	{"rate_limit is a list", policy.CodeWrongType, policy.SeverityError, "domain: d\ndescriptors: [{key: a, rate_limit: [{unit: day}]}]\n", "2:36 descriptors[0].rate_limit", "cannot unmarshal !!seq into"},
	{"negative limit", policy.CodeWrongType, policy.SeverityError, rateLimit("unit: day, requests_per_unit: -1"), "4:48 descriptors[0].rate_limit.requests_per_unit", "cannot unmarshal !!int `-1` into uint32"},
	{"limit above 32 bits", policy.CodeWrongType, policy.SeverityError, rateLimit("unit: day, requests_per_unit: 4294967296"), "4:48 descriptors[0].rate_limit.requests_per_unit", "cannot unmarshal !!int `4294967296` into uint32"},
	{"quoted limit", policy.CodeWrongType, policy.SeverityError, rateLimit(`unit: day, requests_per_unit: "5"`), "4:48 descriptors[0].rate_limit.requests_per_unit", "cannot unmarshal !!str `5` into uint32"},
	{"quoted flag", policy.CodeWrongType, policy.SeverityError, rateLimit(`unlimited: "true"`), "4:29 descriptors[0].rate_limit.unlimited", "cannot unmarshal !!str `true` into bool"},
	{"metadata is text", policy.CodeWrongType, policy.SeverityError, "domain: d\ndescriptors: [{key: a, metadata: x}]\n", "2:34 descriptors[0].metadata", "cannot unmarshal !!str `x` into"},
	{"version is text", policy.CodeWrongType, policy.SeverityError, "domain: d\nversion: v1\n", "2:10 version", "cannot unmarshal !!str `v1` into integer"},
	{"on_store_failure mode is a map", policy.CodeWrongType, policy.SeverityError, rateLimit("unit: day, requests_per_unit: 1, on_store_failure: {mode: {}}"), "4:76 descriptors[0].rate_limit.on_store_failure.mode", "cannot unmarshal !!map into string"},
	{"limit with a fraction", policy.CodeScalar, policy.SeverityError, rateLimit("unit: day, requests_per_unit: 1.5"), "4:48 descriptors[0].rate_limit.requests_per_unit", "error checking config"},
	{"value with an exponent", policy.CodeScalar, policy.SeverityError, "domain: d\ndescriptors: [{key: a, value: 1e3}]\n", "2:31 descriptors[0].value", "error checking config"},
	{"numeric key", policy.CodeKeyNotString, policy.SeverityError, "domain: d\n0.25: x\n", "2:1", "config error, key is not of type string: 0.25"},
	{"boolean key", policy.CodeKeyNotString, policy.SeverityError, "domain: d\ndescriptors:\n  - key: a\n    yes: b\n", "4:5 descriptors[0]", "config error, key is not of type string: yes"},
	{"map as a key", policy.CodeKeyNotString, policy.SeverityError, "domain: d\n? {a: b}\n: c\n", "2:3", "invalid map key"},
	{"misspelled rate_limit", policy.CodeUnknownKey, policy.SeverityError, "domain: d\ndescriptors:\n  - key: a\n    ratelimit: {unit: day}\n", "4:5 descriptors[0].ratelimit", "config error, unknown key 'ratelimit'"},
	{"misspelled requests_per_unit", policy.CodeUnknownKey, policy.SeverityError, rateLimit("unit: day, requestsperunit: 5"), "4:29 descriptors[0].rate_limit.requestsperunit", "config error, unknown key 'requestsperunit'"},
	{"key in capitals", policy.CodeUnknownKey, policy.SeverityError, "Domain: d\n", "1:1 Domain", "config error, unknown key 'Domain'"},
	{"unknown key below an ignored one", policy.CodeUnknownKey, policy.SeverityError, "domain: d\nrate_limit: {per: 5}\n", "2:14 rate_limit.per", "config error, unknown key 'per'"},
	{"algorithm beside key", policy.CodeMisplacedKey, policy.SeverityError, "domain: d\ndescriptors: [{key: a, algorithm: token_bucket}]\n", "2:24 descriptors[0].algorithm", "key 'algorithm' has no meaning in a descriptor"},
	{"unit in defaults", policy.CodeMisplacedKey, policy.SeverityError, "domain: d\ndefaults: {unit: day}\n", "2:12 defaults.unit", "key 'unit' has no meaning in defaults"},
	{"list of scalars", policy.CodeListOfScalars, policy.SeverityError, "domain: d\ndescriptors:\n  - a\n", "3:5 descriptors[0]", "config error, yaml file contains list of type other than map: a"},
	{"replaces as names", policy.CodeListOfScalars, policy.SeverityError, rateLimit("unit: day, requests_per_unit: 1, replaces: [a]"), "4:62 descriptors[0].rate_limit.replaces[0]", "config error, yaml file contains list of type other than map: a"},
	{"algorithm of later", policy.CodeNotSupported, policy.SeverityError, rateLimit("unit: day, requests_per_unit: 1, algorithm: concurrency"), "4:62 descriptors[0].rate_limit.algorithm", "algorithm 'concurrency' is not supported yet"},
	{"refunds trusted", policy.CodeNotSupported, policy.SeverityError, "domain: d\ndefaults: {refunds: trusted}\n", "2:21 defaults.refunds", "refunds 'trusted' is not supported yet"},
	{"ceiling", policy.CodeNotSupported, policy.SeverityError, rateLimit("unit: day, requests_per_unit: 1, on_store_failure: {mode: local, ceiling: 5}"), "4:83 descriptors[0].rate_limit.on_store_failure.ceiling", "'ceiling' is not supported yet"},
	{"unknown algorithm", policy.CodeInvalidValue, policy.SeverityError, rateLimit("unit: day, requests_per_unit: 1, algorithm: leaky"), "4:62 descriptors[0].rate_limit.algorithm", "invalid algorithm 'leaky'"},
	{"unknown overdraw", policy.CodeInvalidValue, policy.SeverityError, rateLimit("unit: day, requests_per_unit: 1, overdraw: true"), "4:61 descriptors[0].rate_limit.overdraw", "invalid overdraw 'true'"},
	{"unknown failure mode", policy.CodeInvalidValue, policy.SeverityError, rateLimit("unit: day, requests_per_unit: 1, on_store_failure: allow"), "4:69 descriptors[0].rate_limit.on_store_failure", "invalid on_store_failure 'allow'"},
	{"unknown refunds", policy.CodeInvalidValue, policy.SeverityError, rateLimit("unit: day, requests_per_unit: 1, refunds: yes"), "4:60 descriptors[0].rate_limit.refunds", "invalid refunds 'yes'"},
	{"version 0", policy.CodeInvalidValue, policy.SeverityError, "domain: d\nversion: 0\n", "2:10 version", "invalid version '0'"},
	{"version of 2^48", policy.CodeInvalidValue, policy.SeverityError, "domain: d\nversion: 281474976710656\n", "2:10 version", "invalid version '281474976710656'"},
	{"multiplier 0", policy.CodeInvalidValue, policy.SeverityError, rateLimit("unit: day, requests_per_unit: 1, unit_multiplier: 0"), "4:68 descriptors[0].rate_limit.unit_multiplier", "invalid unit_multiplier '0'"},
	{"burst 0", policy.CodeInvalidValue, policy.SeverityError, rateLimit("unit: day, requests_per_unit: 1, algorithm: token_bucket, burst: 0"), "4:83 descriptors[0].rate_limit.burst", "invalid burst '0'"},
	{"burst on a window", policy.CodeConflict, policy.SeverityError, rateLimit("unit: day, requests_per_unit: 1, burst: 2"), "4:58 descriptors[0].rate_limit.burst", "burst does not go with algorithm fixed_window"},
	{"overdraw_cap on a window", policy.CodeConflict, policy.SeverityError, rateLimit("unit: day, requests_per_unit: 1, overdraw_cap: 2"), "4:65 descriptors[0].rate_limit.overdraw_cap", "overdraw_cap does not go with algorithm fixed_window"},
	{"burst without a rate", policy.CodeConflict, policy.SeverityError, rateLimit("unit: day, requests_per_unit: 0, algorithm: token_bucket, burst: 2"), "4:83 descriptors[0].rate_limit.burst", "the bucket would never fill again"},
	{"overdraw on a log", policy.CodeConflict, policy.SeverityError, rateLimit("unit: day, requests_per_unit: 1, algorithm: sliding_log, overdraw: on"), "4:85 descriptors[0].rate_limit.overdraw", "overdraw 'on' does not go with algorithm sliding_log"},
	{"overdraw on for permits by default", policy.CodeConflict, policy.SeverityError, "domain: d\ndefaults: {overdraw: on, algorithm: concurrency}\ndescriptors:\n  - key: k\n    rate_limit: {unit: day, requests_per_unit: 1}\n", "5:5 descriptors[0].rate_limit.overdraw", "overdraw 'on' does not go with algorithm concurrency"},
	{"algorithm and unlimited", policy.CodeConflict, policy.SeverityError, rateLimit("unlimited: true, algorithm: token_bucket"), "4:46 descriptors[0].rate_limit.algorithm", "algorithm does not go with unlimited"},
	{"empty file", policy.CodeEmptyDomain, policy.SeverityError, "", "1:1 domain", "config file cannot have empty domain"},
	{"no domain", policy.CodeEmptyDomain, policy.SeverityError, "descriptors: []\n", "1:1 domain", "config file cannot have empty domain"},
	{"null domain", policy.CodeEmptyDomain, policy.SeverityError, "descriptors: []\ndomain: ~\n", "2:9 domain", "config file cannot have empty domain"},
	{"value without key", policy.CodeEmptyKey, policy.SeverityError, "domain: d\ndescriptors:\n  - value: a\n", "3:5 descriptors[0].key", "descriptor has empty key"},
	{"twice the same", policy.CodeDuplicateKey, policy.SeverityError, "domain: d\ndescriptors:\n  - key: a\n    value: b\n  - {key: a, value: b}\n", "5:5 descriptors[1]", "duplicate descriptor composite key 'd.a_b'"},
	{"twice the same below", policy.CodeDuplicateKey, policy.SeverityError, "domain: d\ndescriptors:\n  - key: a\n    descriptors:\n    - key: b\n    - key: b\n", "6:7 descriptors[0].descriptors[1]", "duplicate descriptor composite key 'd.a.b'"},
	{"twice the same pattern", policy.CodeDuplicateKey, policy.SeverityError, "domain: d\ndescriptors:\n  - key: a*\n  - key: a*\n", "4:5 descriptors[1]", "duplicate descriptor composite key 'd.a*'"},
	{"unknown unit", policy.CodeInvalidUnit, policy.SeverityError, rateLimit("unit: foo, requests_per_unit: 1"), "4:24 descriptors[0].rate_limit.unit", "invalid rate limit unit 'foo'"},
	{"no unit", policy.CodeInvalidUnit, policy.SeverityError, rateLimit(""), "4:5 descriptors[0].rate_limit.unit", "invalid rate limit unit ''"},
	{"the unit UNKNOWN", policy.CodeInvalidUnit, policy.SeverityError, rateLimit("unit: UNKNOWN, requests_per_unit: 1"), "4:24 descriptors[0].rate_limit.unit", "invalid rate limit unit 'UNKNOWN'"},
	{"unlimited with a unit", policy.CodeUnitAndUnlimited, policy.SeverityError, rateLimit("unlimited: true, unit: day"), "4:41 descriptors[0].rate_limit.unit", "should not specify rate limit unit when unlimited"},
	{"empty replaces", policy.CodeEmptyReplaces, policy.SeverityError, rateLimit("unlimited: true, replaces: [{name: ''}]"), "4:53 descriptors[0].rate_limit.replaces[0]", "should not have an empty replaces entry"},
	{"replaces without a name", policy.CodeEmptyReplaces, policy.SeverityError, rateLimit("unlimited: true, replaces: [{}]"), "4:46 descriptors[0].rate_limit.replaces[0]", "should not have an empty replaces entry"},
	{"replaces itself", policy.CodeSelfReplaces, policy.SeverityError, rateLimit("name: n, unlimited: true, replaces: [{name: n}]"), "4:62 descriptors[0].rate_limit.replaces[0]", "replaces should not contain name of same descriptor"},
	{"share_threshold without a pattern", policy.CodeShareThreshold, policy.SeverityError, "domain: d\ndescriptors:\n  - {key: k, value: abc, share_threshold: true}\n", "3:26 descriptors[0].share_threshold", "share_threshold can only be used with wildcard values (containing '*'), but found key 'k_abc'"},
	{"metadata that is no Struct", policy.CodeBadMetadata, policy.SeverityError, "domain: d\ndescriptors: [{key: k, metadata: {a: !!binary /w==}}]\n", "2:38 descriptors[0].metadata.a", "error parsing metadata: invalid UTF-8"},
	{"a rate that has no exact form", policy.CodeInexactRate, policy.SeverityError, rateLimit("unit: year, requests_per_unit: 4294967291, algorithm: token_bucket"), "4:5 descriptors[0].rate_limit", "cannot be counted exactly"},
	{"a window of ages", policy.CodeWindowTooLong, policy.SeverityError, rateLimit("unit: year, requests_per_unit: 1, unit_multiplier: 5000"), "4:69 descriptors[0].rate_limit.unit_multiplier", "longer than 4,400 years"},
	{"a sliding window of years", policy.CodeWindowTooLong, policy.SeverityError, rateLimit("unit: year, requests_per_unit: 1, algorithm: sliding_window, unit_multiplier: 3"), "4:96 descriptors[0].rate_limit.unit_multiplier", "longer than 795 days"},
	{"a sliding log of too many", policy.CodeInvalidValue, policy.SeverityError, rateLimit("unit: day, requests_per_unit: 1001, algorithm: sliding_log"), "4:48 descriptors[0].rate_limit.requests_per_unit", "1001 are more than 1000"},
	{"rate_limits beside rate_limit", policy.CodeConflict, policy.SeverityError, rateLimits("name: a, unit: day, requests_per_unit: 1") + "    rate_limit: {unit: day, requests_per_unit: 1}\n", "4:5 descriptors[0].rate_limits", "rate_limits does not go with rate_limit"},
	{"a limit without a name", policy.CodeMissingName, policy.SeverityError, rateLimits("unit: day, requests_per_unit: 1"), "5:9 descriptors[0].rate_limits[0].name", "has no name"},
	{"two limits of one name", policy.CodeDuplicateName, policy.SeverityError, rateLimits("name: a, unit: day, requests_per_unit: 1", "unit: hour, requests_per_unit: 1, name: a"), "6:50 descriptors[0].rate_limits[1].name", "another limit of the list has the name 'a'"},
	{"no limit in a list", policy.CodeInvalidValue, policy.SeverityError, "domain: d\ndescriptors: [{key: k, rate_limits: []}]\n", "2:24 descriptors[0].rate_limits", "rate_limits is empty"},
	{"a limit more than a request may meet", policy.CodeTooManyLimits, policy.SeverityError, rateLimits(manyLimits(65)...), "4:5 descriptors[0].rate_limits", "65 limits on one descriptor"},
	{"replaces a limit beside it", policy.CodeSelfReplaces, policy.SeverityError, rateLimits("name: a, unlimited: true", "name: b, unlimited: true, replaces: [{name: a}]"), "6:54 descriptors[0].rate_limits[1].replaces[0]", "would never apply"},
	{"rate_limits is a map", policy.CodeWrongType, policy.SeverityError, "domain: d\ndescriptors: [{key: k, rate_limits: {name: a}}]\n", "2:37 descriptors[0].rate_limits", "cannot unmarshal !!map into"},
	{"rate_limits as names", policy.CodeListOfScalars, policy.SeverityError, "domain: d\ndescriptors: [{key: k, rate_limits: [a]}]\n", "2:38 descriptors[0].rate_limits[0]", "list of type other than map: a"},
	{"rate_limits in a file", policy.CodeMisplacedKey, policy.SeverityError, "domain: d\nrate_limits: []\n", "2:1 rate_limits", "key 'rate_limits' has no meaning in a file"},
	{"quota_mode of one of several", policy.CodeMisplacedKey, policy.SeverityError, rateLimits("name: a, unit: day, requests_per_unit: 1, quota_mode: true"), "5:52 descriptors[0].rate_limits[0].quota_mode", "key 'quota_mode' has no meaning in rate_limits"},
	{"a bad unit in a list", policy.CodeInvalidUnit, policy.SeverityError, rateLimits("name: a, unit: day, requests_per_unit: 1", "name: b, unit: foo, requests_per_unit: 1"), "6:25 descriptors[0].rate_limits[1].unit", "invalid rate limit unit 'foo'"},

	{"shadow_mode in a rate_limit", policy.CodeIgnoredKey, policy.SeverityWarning, rateLimit("unit: day, requests_per_unit: 1, shadow_mode: true"), "4:51 descriptors[0].rate_limit.shadow_mode", "key 'shadow_mode' has no meaning in rate_limit"},
	{"unlimited beside key", policy.CodeIgnoredKey, policy.SeverityWarning, "domain: d\ndescriptors:\n  - key: k\n    unlimited: true\n", "4:5 descriptors[0].unlimited", "key 'unlimited' has no meaning in a descriptor and is ignored"},
	{"key at the top", policy.CodeIgnoredKey, policy.SeverityWarning, "domain: d\nkey: k\n", "2:1 key", "key 'key' has no meaning in a file and is ignored"},
	{"requests_per_unit beside unlimited", policy.CodeNoEffect, policy.SeverityWarning, rateLimit("unlimited: true, requests_per_unit: 5"), "4:54 descriptors[0].rate_limit.requests_per_unit", "no effect beside unlimited"},
	{"a bad unit beside unlimited", policy.CodeNoEffect, policy.SeverityWarning, rateLimit("unlimited: true, unit: foo"), "4:41 descriptors[0].rate_limit.unit", "no effect beside unlimited"},
	{"overdraw_cap with overdraw off", policy.CodeNoEffect, policy.SeverityWarning, rateLimit("unit: day, requests_per_unit: 1, algorithm: token_bucket, overdraw: off, overdraw_cap: 5"), "4:105 descriptors[0].rate_limit.overdraw_cap", "no effect with overdraw 'off'"},
	{"replaces nobody", policy.CodeNoEffect, policy.SeverityWarning, rateLimit("unit: day, requests_per_unit: 1, name: n, replaces: [{name: m}]"), "4:78 descriptors[0].rate_limit.replaces[0]", "no rule of domain 'd' has the name 'm'"},
	{"shadow_mode above the limit", policy.CodeNoEffect, policy.SeverityWarning, "domain: d\ndescriptors:\n  - key: a\n    shadow_mode: true\n    descriptors: [{key: b, rate_limit: {unit: day, requests_per_unit: 1}}]\n", "4:5 descriptors[0].shadow_mode", "shadow_mode has no effect on a descriptor without rate_limit"},
	{"metadata above the limit", policy.CodeNoEffect, policy.SeverityWarning, "domain: d\ndescriptors:\n  - key: a\n    metadata: {x: y}\n", "4:5 descriptors[0].metadata", "metadata has no effect on a descriptor without rate_limit"},
	{"no requests_per_unit", policy.CodeOmittedLimit, policy.SeverityWarning, rateLimit("unit: day"), "4:5 descriptors[0].rate_limit", "the limit is 0, which denies everything"},
	{"a second document", policy.CodeSecondDocument, policy.SeverityWarning, "domain: d\n---\ndomain: e\n", "3:1", "only the first YAML document of a file is used"},
	{"a key twice", policy.CodeRepeatedKey, policy.SeverityWarning, "domain: d\ndomain: e\n", "2:1 domain", "key 'domain' is set twice; the last one wins"},
	{"rate_limit twice", policy.CodeRepeatedKey, policy.SeverityWarning, "domain: d\ndescriptors:\n  - key: k\n    rate_limit: {unit: day, requests_per_unit: 1}\n    rate_limit: {unit: hour}\n", "5:5 descriptors[0].rate_limit", "the last one wins field by field"},
	{"merge after a key", policy.CodeRepeatedKey, policy.SeverityWarning, "domain: d\ndescriptors:\n  - &a {key: a}\n  - key: b\n    <<: *a\n    value: c\n", "4:5 descriptors[1].key", "key 'key' is set before <<, which sets it again and wins"},
	{"pattern behind a wider one", policy.CodeUnreachable, policy.SeverityWarning, "domain: d\ndescriptors:\n  - {key: k, value: a*}\n  - {key: k, value: ab*c}\n", "4:5 descriptors[1]", "'k_ab*c' is hidden: the pattern 'k_a*' at f.yaml:3 comes first"},
	{"bare key behind a star", policy.CodeUnreachable, policy.SeverityWarning, "domain: d\ndescriptors:\n  - key: k\n  - {key: k, value: '*'}\n", "3:5 descriptors[0]", "'k' is hidden: the pattern 'k_*' at f.yaml:4 comes first"},
	{"local failure mode", policy.CodeActsAsClosed, policy.SeverityWarning, rateLimit("unit: day, requests_per_unit: 1, on_store_failure: {mode: local}"), "4:76 descriptors[0].rate_limit.on_store_failure", "acts as closed"},
	{"exempt by default", policy.CodeActsAsClosed, policy.SeverityWarning, "domain: d\ndefaults: {on_store_failure: exempt}\n", "2:30 defaults.on_store_failure", "acts as closed"},
	{"default failure mode", policy.CodeActsAsClosed, policy.SeverityNote, rateLimit("unit: day, requests_per_unit: 1"), "3:5 descriptors[0].rate_limit", "acts as closed"},
	{"fixed window", policy.CodeWindowTail, policy.SeverityNote, rateLimit("unit: day, requests_per_unit: 1"), "4:5 descriptors[0].rate_limit", "up to 2 × its limit"},
	{"bucket with overdraw auto", policy.CodeBucketOverdraw, policy.SeverityNote, rateLimit("unit: day, requests_per_unit: 1, algorithm: token_bucket"), "4:5 descriptors[0].rate_limit", "peeked first and charged later"},
}

// manyLimits are the fields of n limits of a list.
func manyLimits(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("name: n%d, unit: day, requests_per_unit: 1", i)
	}
	return all
}

// laughs is a file of a few hundred bytes that stands for 10^n nodes.
func laughs(n int) string {
	var b strings.Builder
	b.WriteString("domain: d\nmetadata:\n  a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n")
	for i := 1; i < n; i++ {
		fmt.Fprintf(&b, "  a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", i-1), 10), ","))
	}
	return b.String()
}

// mergedLaughs does the same with maps that merge others.
func mergedLaughs(n int) string {
	var b strings.Builder
	b.WriteString("domain: d\nmetadata:\n  a0: &a0 {a: b, c: d}\n")
	for i := 1; i < n; i++ {
		fmt.Fprintf(&b, "  a%d: &a%d {<<: [%s]}\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", i-1), 10), ","))
	}
	return b.String()
}

func TestFaults(t *testing.T) {
	for _, c := range provocations {
		t.Run(c.name, func(t *testing.T) {
			_, faults := policy.Compile([]*policy.File{policy.Parse("f.yaml", []byte(c.yaml))}, policy.Options{})
			var all []string
			for _, f := range faults {
				if f.Code != c.code || f.Severity != c.severity || !strings.Contains(f.Message, c.message) {
					all = append(all, f.Error())
					continue
				}
				if f.File != "f.yaml" || f.Mend == "" {
					t.Errorf("fault without file or mend: %+v", f)
				}
				place := strings.TrimSpace(fmt.Sprintf("%d:%d %s", f.Line, f.Column, f.Path))
				if c.place != "" && place != c.place {
					t.Errorf("%v\nis at %s, want %s", f, place, c.place)
				}
				return
			}
			t.Errorf("no %s %s with %q, but\n%s", c.severity, c.code, c.message, strings.Join(all, "\n"))
		})
	}
}

// TestOneFaultOnce: a mistake is reported once, not once for each pass and
// each consequence.
func TestOneFaultOnce(t *testing.T) {
	wrongTwice := map[string]bool{"overdraw on a log": true, "overdraw on for permits by default": true, "key in capitals": true}
	for _, c := range provocations {
		if c.severity != policy.SeverityError || wrongTwice[c.name] {
			continue
		}
		_, faults := policy.Compile([]*policy.File{policy.Parse("f.yaml", []byte(c.yaml))}, policy.Options{})
		if errs := faults.Of(policy.SeverityError); len(errs) != 1 {
			t.Errorf("%s: want one error, got\n%v", c.name, errs.Err())
		}
	}
}

func TestStrict(t *testing.T) {
	for _, c := range provocations {
		if c.severity == policy.SeverityError {
			continue
		}
		files := []*policy.File{policy.Parse("f.yaml", []byte(c.yaml))}
		if set, faults := policy.Compile(files, policy.Options{}); set == nil {
			t.Errorf("%s: a %s refuses the set: %v", c.name, c.severity, faults.Err())
		}
		set, faults := policy.Compile(files, policy.Options{Strict: true})
		if refused := set == nil; refused != (len(faults.Of(policy.SeverityError)) > 0) || c.severity == policy.SeverityWarning && !refused {
			t.Errorf("%s: a strict load of a %s gives a set: %t, %v", c.name, c.severity, set != nil, faults)
		}
		if len(faults.Of(policy.SeverityWarning)) > 0 {
			t.Errorf("%s: a strict load still warns: %v", c.name, faults)
		}
	}
}

func TestAllFaultsOfAllFilesInOrder(t *testing.T) {
	a := policy.Parse("a.yaml", []byte("domain: a\ndescriptors:\n  - value: x\n  - key: k\n    rate_limit: {unit: foo, requests_per_unit: 1.5}\n"))
	b := policy.Parse("b.yaml", []byte("descriptors: 5\n"))
	set, faults := policy.Compile([]*policy.File{a, b}, policy.Options{})
	if set != nil {
		t.Error("a set with errors exists")
	}
	var got []string
	for _, f := range faults.Of(policy.SeverityError) {
		got = append(got, fmt.Sprintf("%s:%d:%d %s", f.File, f.Line, f.Column, f.Code))
	}
	want := []string{
		"a.yaml:3:5 empty_key", "a.yaml:5:24 invalid_unit", "a.yaml:5:48 unsupported_scalar",
		"b.yaml:1:1 empty_domain", "b.yaml:1:14 wrong_type",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("faults (-want +got):\n%s", diff)
	}
	if text := faults.Err().Error(); strings.Count(text, "\n") != len(want)-1 {
		t.Errorf("Err has not one line for each error:\n%s", text)
	}
}

func TestFileTooLarge(t *testing.T) {
	data := []byte("domain: d\n#" + strings.Repeat("x", policy.MaxFileSize))
	_, faults := policy.Compile([]*policy.File{policy.Parse("f.yaml", data)}, policy.Options{})
	if len(faults) != 1 || faults[0].Code != policy.CodeFileTooLarge {
		t.Errorf("faults = %v, want one file_too_large", faults)
	}
}

func TestMoreFaults(t *testing.T) {
	data := []byte("domain: d\ndescriptors:\n" + strings.Repeat("  - x\n", 5000))
	_, faults := policy.Compile([]*policy.File{policy.Parse("f.yaml", data)}, policy.Options{})
	if n := len(faults); n != 1001 || faults[n-1].Code != policy.CodeMoreFaults {
		t.Errorf("%d faults, the last %v; want 1001, the last more_faults", n, faults[n-1])
	}
}

func TestEmptySet(t *testing.T) {
	set, faults := policy.Compile(nil, policy.Options{})
	if set != nil || len(faults) != 1 || faults[0].Code != policy.CodeEmptySet {
		t.Errorf("Compile(nil) = %v, %v; want one empty_set", set, faults)
	}
	set, faults = policy.Compile(nil, policy.Options{AllowEmpty: true})
	if set == nil || len(faults) != 0 || set.Domain("d") != nil {
		t.Errorf("Compile(nil) with AllowEmpty = %v, %v; want an empty set", set, faults)
	}
}

// TestFaultFitsALine: texts of a file are cut and escaped where a fault
// repeats them, since faults go to terminals and logs.
func TestFaultFitsALine(t *testing.T) {
	data := rateLimit(`requests_per_unit: 1, unit: "a\e[2J\n` + strings.Repeat("x", 10_000) + `"`)
	_, faults := policy.Compile([]*policy.File{policy.Parse("f.yaml", []byte(data))}, policy.Options{})
	errs := faults.Of(policy.SeverityError)
	if len(errs) != 1 {
		t.Fatalf("errors = %v, want one", errs)
	}
	text := errs[0].Error()
	if want := `invalid rate limit unit 'a\x1b[2J\nxxx`; !strings.Contains(text, want) || len(text) > 1000 {
		t.Errorf("fault = %s\nwant it short, with %s", text, want)
	}
}
