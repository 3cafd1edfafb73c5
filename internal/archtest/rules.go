package archtest

import (
	"slices"
	"strings"
)

// leaf is for packages that decide one thing: they know the words of pkg/limit and nothing of each other.
var leaf = []string{"pkg/limit"}

// mayImport says which packages of this module each package below pkg/ may import. Commands may import all of them,
// tests what they like.
var mayImport = map[string][]string{
	"pkg/limit": {},

	"pkg/identity":  leaf,
	"pkg/admit":     leaf,
	"pkg/policy":    leaf,
	"pkg/negcache":  leaf,
	"pkg/lease":     leaf,
	"pkg/fallback":  leaf,
	"pkg/fleet":     leaf,
	"pkg/memory":    leaf,
	"pkg/authority": leaf,

	// The middle of the product: it knows the stages, and neither Envoy nor Redis.
	"pkg/pipeline": {
		"pkg/limit", "pkg/identity", "pkg/admit", "pkg/policy", "pkg/negcache", "pkg/lease", "pkg/fallback",
	},

	// The way in: it turns Envoy's messages into decisions, and knows nothing of the way out to Redis.
	"pkg/rls": {"pkg/limit", "pkg/pipeline", "pkg/policy", "pkg/identity"},

	// The wiring knows everybody, and nobody but commands knows it.
	"pkg/sidecar": {
		"pkg/limit", "pkg/identity", "pkg/admit", "pkg/policy", "pkg/negcache", "pkg/lease", "pkg/fallback",
		"pkg/fleet", "pkg/memory", "pkg/authority", "pkg/pipeline", "pkg/rls",
	},
}

// owners says that imports which start with one of some prefixes are for some packages only.
type owners struct {
	prefixes []string
	packages []string // A trailing /* stands for everything below.
	why      string
}

func (o owners) matches(imported string) bool {
	return slices.ContainsFunc(o.prefixes, func(prefix string) bool {
		return imported == prefix || strings.HasPrefix(imported, strings.TrimSuffix(prefix, "/")+"/")
	})
}

func (o owners) allows(name string) bool {
	return slices.ContainsFunc(o.packages, func(pattern string) bool {
		below, wild := strings.CutSuffix(pattern, "*")
		return name == pattern || wild && strings.HasPrefix(name, below)
	})
}

// outsideOnlyIn gives every outside dependency its owners; one that is not here is not allowed. pkg/limit owns none,
// so it stays with the standard library.
var outsideOnlyIn = []owners{
	{
		prefixes: []string{"github.com/envoyproxy", "github.com/cncf/xds", "google.golang.org/protobuf", "google.golang.org/genproto"},
		packages: []string{"pkg/rls"},
		why:      "Envoy's messages end at pkg/rls, also for `sidecar call`",
	},
	{
		prefixes: []string{"google.golang.org/grpc"},
		packages: []string{"pkg/rls", "pkg/sidecar"},
		why:      "gRPC is how requests come in and how the wiring listens",
	},
	{
		prefixes: []string{"github.com/redis/go-redis"},
		packages: []string{"pkg/authority"},
		why:      "only pkg/authority knows Redis; what needs it elsewhere declares an interface",
	},
	{
		prefixes: []string{"go.yaml.in/yaml", "sigs.k8s.io/yaml"},
		packages: []string{"pkg/policy", "pkg/sidecar"},
		why:      "YAML ends where policy files and sidecar.yaml are read",
	},
	{
		prefixes: []string{"github.com/alecthomas/kong"},
		packages: []string{"cmd/*"},
		why:      "flags end at the commands",
	},
	{
		prefixes: []string{"github.com/fsnotify/fsnotify"},
		packages: []string{"pkg/sidecar"},
		why:      "reloading is wiring",
	},
	{
		prefixes: []string{"github.com/sony/gobreaker"},
		packages: []string{"pkg/fallback"},
		why:      "the breaker is a part of failing",
	},
	{
		prefixes: []string{"github.com/hashicorp/golang-lru"},
		packages: []string{"pkg/negcache", "pkg/lease"},
		why:      "the bounded tables of what is known locally are built on it",
	},
	{
		prefixes: []string{"github.com/prometheus/client_golang"},
		packages: []string{
			"pkg/admit", "pkg/authority", "pkg/fallback", "pkg/fleet", "pkg/identity", "pkg/lease", "pkg/memory",
			"pkg/negcache", "pkg/pipeline", "pkg/rls", "pkg/sidecar",
		},
		why: "everything but the pure packages may count",
	},
	{
		prefixes: []string{"golang.org/x/sync", "golang.org/x/sys", "golang.org/x/time"},
		packages: []string{"pkg/authority", "pkg/rls", "pkg/sidecar"},
		why:      "the domain in the middle needs the standard library only",
	},
	{
		prefixes: []string{"golang.org/x/net/netutil"},
		packages: []string{"pkg/sidecar"},
		why:      "it bounds the connections of the HTTP listeners",
	},
}

// standardOnlyIn keeps the outside world out of the packages that decide: I/O belongs to the adapters and the wiring.
var standardOnlyIn = []owners{
	{
		prefixes: []string{"net/http"},
		packages: []string{"pkg/sidecar", "cmd/*", "internal/*"},
		why:      "HTTP is served and asked by the wiring",
	},
	{
		prefixes: []string{"os", "syscall"},
		packages: []string{"pkg/policy", "pkg/authority", "pkg/rls", "pkg/sidecar", "cmd/*", "internal/*"},
		why:      "a decision depends on its arguments, not on the machine",
	},
}

// clockReaders are the functions of package time that read the machine's clock.
var clockReaders = []string{"Now", "Since", "Until"}

// wiring is where the wall clock enters the program; from there it travels as an argument or a func() time.Time.
// Tools and the packages that run servers for tests are no part of the program.
var wiring = []string{"pkg/sidecar", "cmd", "internal", "hack"}

// clockFiles are the files beyond the wiring that may read it, each with its reason: a span or a deadline, for which
// only the difference of two readings counts, or what an injected clock is when nobody injects one. Nothing in them
// may depend on what time of day it is.
var clockFiles = []string{
	"pkg/authority/flight.go",  // Deadlines of waiting callers, and how long a call took.
	"pkg/authority/redis.go",   // The start against which offsets of the store's clock are kept; injected otherwise.
	"pkg/memory/memory.go",     // Whether a caller's deadline has passed.
	"pkg/pipeline/pipeline.go", // Injected.
	"pkg/rls/service.go",       // How long a call took.
}
