package sidecar

import (
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/weir-rl/weir/pkg/authority"
	"github.com/weir-rl/weir/pkg/limit"
	"github.com/weir-rl/weir/pkg/memory"
	"github.com/weir-rl/weir/pkg/pipeline"
	"github.com/weir-rl/weir/pkg/rls"
)

// table is every setting there is. It is read-only.
var table = []Setting{
	text("rls.tcp", typeAddress, "127.0.0.1:8081",
		"Where the rate-limit service listens on TCP, as host:port. Port 0 takes a free one. Empty: not on TCP. "+
			"It is plaintext without authentication: anything but loopback lets whoever reaches it spend budgets.",
		func(c *Config) *string { return &c.RLS.TCP }, optionalAddress),
	text("rls.unix.path", typePath, "",
		"Where the rate-limit service listens on a Unix socket. Empty: not on one. The directory must exist, and the "+
			"process must be able to write to it: the socket is made under another name and renamed, and a lock file stands beside it.",
		func(c *Config) *string { return &c.RLS.Unix.Path }, socketPath),
	fileMode("rls.unix.mode", "0660",
		"Permissions of the socket. Envoy's user must be able to write to it.",
		func(c *Config) *fs.FileMode { return &c.RLS.Unix.Mode }),
	boolean("rls.take_over", "false",
		"Take the socket from the sidecar that serves it, which keeps its open connections until it ends. "+
			"Without it a start beside a living sidecar on the same socket fails and names it.",
		func(c *Config) *bool { return &c.RLS.TakeOver }),
	size("rls.max_recv_msg_size", rls.DefaultMaxRecvMsgSize,
		"The largest request. A larger one is refused before it is read, and Envoy takes that for an allow on open routes: keep it "+
			"at least twice Envoy's header limit times the most descriptors of a route. Each call can use this much memory.",
		64<<10, 1<<30, func(c *Config) *int { return &c.RLS.MaxRecvMsgSize }),
	choice("rls.unavailable_as", UnavailableAsMetadata,
		"How a denial that is not the caller's fault (the store cannot answer, an overload) is told to Envoy. `metadata`: as OVER_LIMIT with `deny_as` in the "+
			"dynamic metadata, which Envoy's `local_reply_config` turns into a 503. `grpc_error`: as the gRPC status UNAVAILABLE, for an Envoy whose configuration "+
			"cannot be changed; it has no headers and no body, and Envoy allows the request unless its filter has `failure_mode_deny: true`.",
		[]string{UnavailableAsMetadata, UnavailableAsError}, func(c *Config) *string { return &c.RLS.UnavailableAs }),

	text("ops.address", typeAddress, ":9090",
		"Where `/healthz`, `/readyz` and `/metrics` are served, for the kubelet and Prometheus. Without a host it is on every address, IPv4 and IPv6. Empty: nowhere.",
		func(c *Config) *string { return &c.Ops.Address }, optionalAddress),
	text("admin.address", typeAddress, "127.0.0.1:9091",
		"Where `/debug/pprof/`, `/config`, `/policy` and `/-/reload` are served. Must be a loopback address, since whoever reaches it may read "+
			"the process's memory. Empty: nowhere.",
		func(c *Config) *string { return &c.Admin.Address }, optionalAddress, loopback),

	list("policy.paths",
		"Policy files and directories of them, in envoyproxy/ratelimit's format with Weir's fields. They are watched, and loaded again when they change. "+
			"Required unless `policy.allow_empty`.",
		func(c *Config) *[]string { return &c.Policy.Paths }),
	boolean("policy.merge_domains", "false",
		"Let several files have the same domain: their descriptors are put together. Otherwise that is a fault.",
		func(c *Config) *bool { return &c.Policy.MergeDomains }),
	boolean("policy.allow_empty", "false",
		"Start without any policy, and let a reload remove all of it, which then limits nothing. Otherwise an empty set is a fault, since it is mostly a directory that was not mounted.",
		func(c *Config) *bool { return &c.Policy.AllowEmpty }),
	duration("policy.poll", DefaultPoll,
		"How often the policy files are read even though nothing said that they changed, for file systems that cannot be watched. What did not change costs "+
			"the reading only. 0: never; then a change that was missed waits for the next one, for SIGHUP or for `POST /-/reload`.",
		0, 24*time.Hour, func(c *Config) *time.Duration { return &c.Policy.Poll }),
	named("policy_defaults.overdraw", limit.OverdrawAuto.String(),
		"Which denied costs are recorded, for rules and files that do not say.",
		[]limit.Overdraw{limit.OverdrawAuto, limit.OverdrawOn, limit.OverdrawOff},
		func(c *Config) *limit.Overdraw { return &c.PolicyDefaults.Overdraw }),
	named("policy_defaults.on_store_failure", limit.ModeLocal.String(),
		"What a rule does while its store cannot answer, for rules and files that do not say.",
		[]limit.Mode{limit.ModeLocal, limit.ModeClosed, limit.ModeOpen, limit.ModeExempt},
		func(c *Config) *limit.Mode { return &c.PolicyDefaults.OnStoreFailure }),

	choice("store.type", "",
		"Where budgets are kept. `redis`: shared by all sidecars on the same Redis and namespace. `memory`: in this process alone, lost with it, "+
			"and N sidecars admit N times each limit. Required; there is no default, so that a forgotten Redis is noticed.",
		[]string{StoreRedis, StoreMemory}, func(c *Config) *string { return &c.Store.Type }),
	secret(text("store.url", typeURL, "",
		"The Redis: `redis://[user:password@]host:port[/db]`, or `unix://[user:password@]/path[?db=N]`. Required with `store.type: redis`. The password is "+
			"never logged; flags can be read by every user of the machine, so prefer the file or the variable.",
		func(c *Config) *string { return &c.Store.URL }, storeURL)),
	text("store.namespace", typeText, "default",
		"Separates environments on one Redis. Sidecars with different namespaces share no budget.",
		func(c *Config) *string { return &c.Store.Namespace }),
	text("store.secret_file", typePath, "",
		"A file whose content (without one line end at its end) is mixed into every key, so that nobody can find out from keys who was limited. "+
			"All sidecars of a namespace need the same one; another secret is another set of budgets. Empty: no secret.",
		func(c *Config) *string { return &c.Store.SecretFile }),
	text("store.tenant_entry", typeText, "tenant",
		"The descriptor entry whose value puts all keys of a tenant into one slot of a Redis Cluster. Changing it starts all budgets of rules with that entry afresh.",
		func(c *Config) *string { return &c.Store.TenantEntry }),
	text("store.key_prefix", typeText, "",
		"Stands before every key as it is, for a Redis that is shared with others or has ACLs by prefix. No braces. Changing it starts all budgets afresh.",
		func(c *Config) *string { return &c.Store.KeyPrefix }, noBraces),
	integer("store.queue_calls", "calls", authority.DefaultQueueCalls,
		"The most calls that wait for Redis at once, and the most keys among them. A call that finds the queue full gets its rules' failure mode at once. "+
			"More takes memory and makes calls wait longer; fewer are refused in a burst.",
		limit.MaxChecks, 1<<20, func(c *Config) *int { return &c.Store.QueueCalls }), // with less, a request could never be counted
	duration("store.dial_timeout", authority.DefaultDialTimeout,
		"The longest that one attempt to connect to Redis takes. No call waits longer than its own budget.",
		10*time.Millisecond, time.Minute, func(c *Config) *time.Duration { return &c.Store.DialTimeout }),

	integer("memory.max_entries", "keys", memory.DefaultMaxEntries,
		"The most keys that `store.type: memory` holds. When full, new keys of a rule share one budget. A key takes about 250 bytes.",
		1, 1<<30, func(c *Config) *int { return &c.Memory.MaxEntries }),

	duration("decision.budget", pipeline.DefaultBudget,
		"The longest that a decision may wait for the store; what Envoy's deadline leaves can make it less. Then the rule's failure mode answers. "+
			"Keep it below the timeout of Envoy's filter, 20 ms by default, or Envoy decides instead.",
		time.Millisecond, 10*time.Second, func(c *Config) *time.Duration { return &c.Decision.Budget }),

	duration("drain.delay", 10*time.Second,
		"The longest that the sidecar goes on answering after a SIGTERM while Envoy still has connections to it. Without connections it ends at once.",
		0, time.Hour, func(c *Config) *time.Duration { return &c.Drain.Delay }),
	duration("drain.timeout", 25*time.Second,
		"The most time from a SIGTERM to the end, `drain.delay` included; then what still runs is cut off. Keep it below the pod's grace period, 30 s by default.",
		time.Second, time.Hour, func(c *Config) *time.Duration { return &c.Drain.Timeout }),

	choice("log.level", "info",
		"The least level that is logged. Nothing is logged per request above debug.",
		[]string{"debug", "info", "warn", "error"}, func(c *Config) *string { return &c.Log.Level }),
	choice("log.format", "text",
		"`text` is key=value, `json` one object a line; both on standard error.",
		[]string{"text", "json"}, func(c *Config) *string { return &c.Log.Format }),
	integer("metrics.values_per_rule", "values", pipeline.DefaultValuesPerRule,
		"The most different values of callers that one rule's metric labels show (`detailed_metric`, `value_to_metric`); the rest are counted as `other`.",
		1, 10_000, func(c *Config) *int { return &c.Metrics.ValuesPerRule }),
}

func secret(s Setting) Setting {
	s.Secret = true
	return s
}

// Table returns every setting in the order of the documentation.
func Table() []Setting { return slices.Clone(table) }

func lookup(path string) *Setting {
	if i := slices.IndexFunc(table, func(s Setting) bool { return s.Path == path }); i >= 0 {
		return &table[i]
	}
	return nil
}

func isSection(path string) bool {
	return slices.ContainsFunc(table, func(s Setting) bool { return strings.HasPrefix(s.Path, path+".") })
}

func paths() []string {
	all := make([]string, len(table))
	for i := range table {
		all[i] = table[i].Path
	}
	return all
}

func variables() []string {
	all := make([]string, len(table))
	for i := range table {
		all[i] = table[i].Env()
	}
	return all
}
