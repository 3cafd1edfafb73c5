package main

import (
	"errors"
	"fmt"
	"net"
	"strings"
)

// address is where a service is: host:port or unix:///path.
type address string

// Validate is called by the parser of the command line.
func (a address) Validate() error {
	if strings.HasPrefix(string(a), "unix:") {
		if path, ok := strings.CutPrefix(string(a), "unix:///"); !ok || path == "" {
			return errors.New("not the absolute path of a socket; write unix:///absolute/path")
		}
		return nil
	}
	if _, port, err := net.SplitHostPort(string(a)); err != nil || port == "" {
		return errors.New("not an address; write host:port or unix:///absolute/path")
	}
	return nil
}

// mendDial adds what to do when nobody is at the address. gRPC gives the cause
// as text only.
func mendDial(err error) error {
	for _, cause := range []string{"connection refused", "no such file or directory"} {
		if text := err.Error(); strings.Contains(text, "while dialing") && strings.Contains(text, cause) {
			return fmt.Errorf("%w; is the sidecar running? It listens where rls.tcp and rls.unix.path say", err)
		}
	}
	return err
}
