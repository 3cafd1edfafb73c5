package authority

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
)

// Bounds of what a store may answer to one command. The largest reply that is
// asked for, to 256 checks, has less than 8 KiB.
const (
	maxReply    = 64 << 10 // bytes
	maxElements = 1 << 10  // of one array
)

// guardedConn refuses what no Redis answers to what is sent here, before
// go-redis makes room for it: it takes any announced length at its word, and
// what then ends is the process. It reads the lines that announce a length and
// nothing else.
type guardedConn struct {
	net.Conn

	left   int // bytes that may still come before the next command
	kind   byte
	inLine bool
	number int // of the line so far
	skip   int // bytes of a text
}

// guarded makes a dialer's connections guarded ones.
func guarded(dial func(context.Context, string, string) (net.Conn, error)) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &guardedConn{Conn: c, left: maxReply}, nil
	}
}

// Write sends a command, or several: go-redis reads all replies before it
// writes again.
func (c *guardedConn) Write(b []byte) (int, error) {
	c.left = maxReply
	return c.Conn.Write(b)
}

func (c *guardedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.left -= n; c.left < 0 {
		return 0, fmt.Errorf("%w: longer than %d bytes", errReply, maxReply)
	}
	if !c.plausible(b[:n]) {
		return 0, fmt.Errorf("%w: a length of %d or more", errReply, c.number)
	}
	return n, err
}

// plausible follows the reply and says whether its lengths are.
func (c *guardedConn) plausible(b []byte) bool {
	for len(b) > 0 {
		if c.skip > 0 {
			n := min(len(b), c.skip)
			b, c.skip = b[n:], c.skip-n
			continue
		}
		x := b[0]
		b = b[1:]
		switch {
		case !c.inLine:
			c.kind, c.inLine, c.number = x, true, -1
		case x == '\n':
			c.inLine = false
			if c.text() && c.number >= 0 {
				c.skip = c.number + len("\r\n")
			}
		case x >= '0' && x <= '9' && c.most() > 0:
			if c.number = max(0, c.number)*10 + int(x-'0'); c.number > c.most() {
				return false
			}
		case x == '-' && c.most() > 0:
			c.kind = '-' // a length of −1: nothing follows
		}
	}
	return true
}

// text says that the line announces a text.
func (c *guardedConn) text() bool { return c.kind == '$' || c.kind == '=' || c.kind == '!' }

// most is the largest length that the line may announce, 0 when it has none.
func (c *guardedConn) most() int {
	switch c.kind {
	case '$', '=', '!':
		return maxReply
	case '*', '~', '%', '>', '|':
		return maxElements
	}
	return 0
}

// SyscallConn lets go-redis look whether an idle connection was closed.
func (c *guardedConn) SyscallConn() (syscall.RawConn, error) {
	if s, ok := c.Conn.(syscall.Conn); ok {
		return s.SyscallConn()
	}
	return nil, errors.New("no system connection")
}
