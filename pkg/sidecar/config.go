package sidecar

import (
	"io/fs"
	"time"

	"github.com/weir-rl/weir/pkg/limit"
)

// Config is what a process is told at its start and never again: where to
// listen, which store, which policy files. What may change while the process
// runs is the policy set, not this.
//
// The meaning, default and bounds of every field stand in the table of
// settings (settings.go) and, made from it, in docs/CONFIGURATION.md. The zero
// Config is not usable; Defaults gives one that lacks only what has no default.
type Config struct {
	RLS            RLSConfig
	Ops            HTTPConfig
	Admin          HTTPConfig
	Policy         PolicyConfig
	PolicyDefaults PolicyDefaults
	Store          StoreConfig
	Memory         MemoryConfig
	Decision       DecisionConfig
	Drain          DrainConfig
	Log            LogConfig
	Metrics        MetricsConfig
}

// RLSConfig says where Envoy finds the service.
type RLSConfig struct {
	TCP            string
	Unix           UnixConfig
	TakeOver       bool
	MaxRecvMsgSize int
	UnavailableAs  string
}

// The forms of a denial that is the limiter's own fault (semantics S34).
const (
	UnavailableAsMetadata = "metadata"
	UnavailableAsError    = "grpc_error"
)

// UnixConfig is the service's Unix socket.
type UnixConfig struct {
	Path string
	Mode fs.FileMode
}

// HTTPConfig is one of the two HTTP listeners.
type HTTPConfig struct {
	Address string
}

// DefaultPoll is the most time for which a change of the policy files that
// nothing told of is not noticed.
const DefaultPoll = 30 * time.Second

// minPoll keeps a wrong unit from making a poll a busy loop.
const minPoll = 100 * time.Millisecond

// PolicyConfig says which files the policy set is made of.
type PolicyConfig struct {
	Paths        []string
	MergeDomains bool
	AllowEmpty   bool
	Poll         time.Duration
}

// PolicyDefaults hold for rules that do not say, in files that do not say.
type PolicyDefaults struct {
	Overdraw       limit.Overdraw
	OnStoreFailure limit.Mode
}

// StoreConfig is where budgets are kept and how keys are made.
type StoreConfig struct {
	Type        string
	URL         string
	Namespace   string
	SecretFile  string
	TenantEntry string
	KeyPrefix   string
	QueueCalls  int
	DialTimeout time.Duration
}

// The store types. There is no default: a sidecar that silently counted in
// its own memory would admit N times the limit (failure F02).
const (
	StoreRedis  = "redis"
	StoreMemory = "memory"
)

// MemoryConfig bounds the store in memory.
type MemoryConfig struct {
	MaxEntries int
}

// DecisionConfig bounds one decision.
type DecisionConfig struct {
	Budget time.Duration
}

// DrainConfig is what happens between a SIGTERM and the end.
type DrainConfig struct {
	Delay   time.Duration
	Timeout time.Duration
}

// LogConfig is what is logged, and how.
type LogConfig struct {
	Level  string
	Format string
}

// MetricsConfig bounds the metrics.
type MetricsConfig struct {
	ValuesPerRule int
}
