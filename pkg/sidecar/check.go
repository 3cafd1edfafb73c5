package sidecar

import (
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"github.com/weir-rl/weir/pkg/authority"
)

// Checks of single values. Each gets the text and returns a *wrong.

func optionalAddress(v string) error {
	if v == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(v)
	if err != nil {
		return &wrong{"not an address", "write host:port, as 127.0.0.1:8081 or [::1]:8081"}
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return &wrong{"not a port", "write a number from 0 to 65535 after the colon"}
	}
	return nil
}

func loopback(v string) error {
	if v == "" {
		return nil
	}
	host, _, _ := net.SplitHostPort(v) // optionalAddress ran before
	if host == "localhost" {
		return nil
	}
	if ip, err := netip.ParseAddr(host); err == nil && ip.Unmap().IsLoopback() {
		return nil
	}
	return &wrong{"not a loopback address", "write 127.0.0.1 or [::1] and the port"}
}

// maxSocketPath is what sockaddr_un holds on Linux, less the closing zero
// byte and what the temporary name adds.
const maxSocketPath = 107 - 16

func socketPath(v string) error {
	if len(v) > maxSocketPath {
		return &wrong{"too long for the path of a socket", "write at most " + strconv.Itoa(maxSocketPath) + " bytes"}
	}
	return nil
}

func noBraces(v string) error {
	if strings.ContainsAny(v, "{}") {
		return &wrong{"contains a brace, which would change the slot of every key", "leave it out"}
	}
	return nil
}

func storeURL(v string) error {
	if v == "" {
		return nil
	}
	mend := "write redis://host:6379/0 or unix:///path/to/redis.sock"
	u, err := url.Parse(v)
	badPort := &wrong{"a URL whose port is not a number from 1 to 65535", mend + "; in a password write / as %2F"}
	switch {
	case err != nil && strings.Contains(err.Error(), "invalid port"):
		return badPort
	case err != nil:
		return &wrong{"not a URL", mend}
	case u.Port() != "":
		if port, err := strconv.ParseUint(u.Port(), 10, 16); err != nil || port == 0 {
			return badPort
		}
	}
	switch u.Scheme {
	case "redis":
		if u.Hostname() == "" {
			return &wrong{"a URL without a host", mend}
		}
		if db := strings.TrimPrefix(u.Path, "/"); db != "" {
			if _, err := strconv.ParseUint(db, 10, 16); err != nil {
				return &wrong{"a URL whose path is not the number of a database", mend}
			}
		}
	case "unix":
		if u.Path == "" || u.Host != "" {
			return &wrong{"a URL without the absolute path of a socket", mend}
		}
	}
	// The client of the store has the last word.
	if err := authority.CheckURL(v); err != nil {
		problem, mend, _ := strings.Cut(strings.TrimPrefix(err.Error(), "store url: "), "; ")
		return &wrong{problem, mend}
	}
	return nil
}

// hidden stands where credentials stood.
const hidden = "xxxxx"

// redactURL hides the password of a URL, and the whole of what is not a URL
// but may still hold one.
func redactURL(v string) string {
	if v == "" {
		return ""
	}
	u, err := url.Parse(v)
	// An @ that does not end the credentials may be part of them.
	if at := strings.Count(v, "@"); err != nil || at > 1 || at == 1 && u.User == nil {
		return hidden
	}
	if q := u.Query(); q.Has("password") {
		q.Set("password", hidden)
		u.RawQuery = q.Encode()
	}
	return u.Redacted()
}

// redactText hides the credentials of a text that is a URL. It may stand where
// no URL belongs.
func redactText(v string) string {
	if strings.Contains(v, "://") && strings.ContainsAny(v, "@?") {
		return redactURL(v)
	}
	return v
}

// Check finds what no single value shows. It serves Configs that were put
// together by a program; Load does it too.
func (c *Config) Check() []Fault {
	var faults []Fault
	fault := func(path, problem, mend string) {
		faults = append(faults, Fault{Path: path, Problem: problem, Mend: mend})
	}
	if c.RLS.TCP == "" && c.RLS.Unix.Path == "" {
		fault("rls.tcp", "nothing to listen on", "set rls.tcp, rls.unix.path or both")
	}
	if len(c.Policy.Paths) == 0 && !c.Policy.AllowEmpty {
		fault("policy.paths", "required", "name policy files or directories; policy.allow_empty starts without any")
	}
	if c.Policy.Poll > 0 && c.Policy.Poll < minPoll {
		fault("policy.poll", "shorter than "+minPoll.String(), "raise it, or write 0 for never")
	}
	switch {
	case c.Store.Type == "":
		fault("store.type", "required, without a default",
			"set redis (and store.url) to share budgets among sidecars, or memory to count in this process alone")
	case c.Store.Type == StoreRedis && c.Store.URL == "":
		fault("store.url", "required with store.type redis", "write redis://host:6379/0 or unix:///path/to/redis.sock")
	}
	if c.Drain.Timeout < c.Drain.Delay {
		fault("drain.timeout", "shorter than drain.delay, which is "+c.Drain.Delay.String(), "raise it, or lower drain.delay")
	}
	return faults
}
