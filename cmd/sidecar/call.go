package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/weir-rl/weir/pkg/pipeline"
	"github.com/weir-rl/weir/pkg/rls"
)

// exitOverLimit is call's exit code for OVER_LIMIT, when it is asked for.
const exitOverLimit = 3

type callCmd struct {
	Addr           address       `default:"127.0.0.1:8081" placeholder:"${default}" help:"The service: host:port or unix:///path."`
	Domain         string        `required:"" help:"The domain of the request."`
	Descriptor     []string      `required:"" sep:"none" placeholder:"K=V,K=V" help:"${descriptor_help} Can be repeated."`
	Hits           uint32        `help:"hits_addend of the request; 0 leaves it out, which means 1."`
	DescriptorHits []string      `name:"descriptor-hits" sep:"none" placeholder:"N" help:"A descriptor's own hits_addend; the first is for the first descriptor, and so on. 0 is a peek, a negative number gives back and needs the =, as --descriptor-hits=-1; - leaves it out."`
	Timeout        time.Duration `default:"1s" help:"The longest wait for the answer."`
	ExitCode       bool          `name:"exit-code" help:"End with exit code 3 for OVER_LIMIT. Otherwise every answer is exit code 0."`
}

// Run prints the whole answer.
func (c *callCmd) Run(e *env) error {
	request, err := c.request()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(e.ctx, c.Timeout)
	defer cancel()
	answer, err := rls.Call(ctx, string(c.Addr), request)
	if err != nil {
		return mendDial(err)
	}
	if err := e.say("%s", strings.TrimSuffix(answer.Text(), "\n")); err != nil {
		return err
	}
	if c.ExitCode && answer.Code() == pipeline.OverLimit {
		return exitCode(exitOverLimit)
	}
	return nil
}

func (c *callCmd) request() (*pipeline.Request, error) {
	r := &pipeline.Request{Domain: c.Domain, HitsAddend: c.Hits}
	for _, text := range c.Descriptor {
		entries, err := parseDescriptor(text)
		if err != nil {
			return nil, err
		}
		r.Descriptors = append(r.Descriptors, pipeline.Descriptor{Entries: entries})
	}
	if len(c.DescriptorHits) > len(r.Descriptors) {
		return nil, fmt.Errorf("%d --descriptor-hits for %d --descriptor; give at most one each", len(c.DescriptorHits), len(r.Descriptors))
	}
	for i, text := range c.DescriptorHits {
		if text == "-" {
			continue
		}
		d := &r.Descriptors[i]
		digits, negative := strings.CutPrefix(text, "-")
		hits, err := strconv.ParseUint(digits, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("--descriptor-hits %q: not a whole number of at most 64 bits; write one, or - for none", text)
		}
		d.Hits, d.HasHits, d.Negative = hits, true, negative
	}
	return r, nil
}
