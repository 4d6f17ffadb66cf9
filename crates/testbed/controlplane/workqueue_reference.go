package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/prometheus/common/expfmt"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/utils/clock"
	testingclock "k8s.io/utils/clock/testing"
)

// workqueueReference runs a script against client-go's own work queue and prints what the queue did and reported, so that
// another implementation can be compared with it. Time stands still unless the script advances it. One call per line:
//
//	add KEY            add-after KEY DELAY   rate-limited KEY   forget KEY   get   done KEY
//	len                retries KEY           advance DURATION   shut-down    scrape
//
// get prints the key, len and retries print a number, scrape prints all workqueue_ metrics in the text format.
func workqueueReference() {
	reference := newReference("reference")
	lines := bufio.NewScanner(os.Stdin)
	output := bufio.NewWriter(os.Stdout)
	for number := 1; lines.Scan(); number++ {
		if err := reference.call(strings.Fields(lines.Text()), output); err != nil {
			fmt.Fprintf(os.Stderr, "workqueue-reference: line %d: %q: %v\n", number, lines.Text(), err)
			os.Exit(1)
		}
	}
	if err := lines.Err(); err != nil {
		fmt.Fprintln(os.Stderr, "workqueue-reference:", err)
		os.Exit(1)
	}
	if err := output.Flush(); err != nil {
		fmt.Fprintln(os.Stderr, "workqueue-reference:", err)
		os.Exit(1)
	}
}

type reference struct {
	clock *scriptClock
	queue workqueue.TypedRateLimitingInterface[string]
}

func newReference(name string) *reference {
	scriptClock := &scriptClock{
		FakeClock: testingclock.NewFakeClock(time.Unix(1_000_000_000, 0)),
		tickers:   map[time.Duration]chan time.Time{delayedTick: make(chan time.Time), unfinishedTick: make(chan time.Time)},
	}
	// Without the second limiter that client-go's controllers use, the one for all keys together: it reads the real clock.
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[string](5*time.Millisecond, 1000*time.Second)
	config := workqueue.TypedRateLimitingQueueConfig[string]{Name: name, Clock: scriptClock}
	return &reference{clock: scriptClock, queue: workqueue.NewTypedRateLimitingQueueWithConfig(limiter, config)}
}

func (r *reference) call(words []string, output io.Writer) error {
	if len(words) == 0 {
		return nil
	}
	arguments := words[1:]
	switch call := words[0]; {
	case call == "add" && len(arguments) == 1:
		r.queue.Add(arguments[0])
	case call == "add-after" && len(arguments) == 2:
		delay, err := time.ParseDuration(arguments[1])
		if err != nil {
			return err
		}
		r.queue.AddAfter(arguments[0], delay)
		r.settle()
	case call == "rate-limited" && len(arguments) == 1:
		r.queue.AddRateLimited(arguments[0])
		r.settle()
	case call == "forget" && len(arguments) == 1:
		r.queue.Forget(arguments[0])
	case call == "get" && len(arguments) == 0:
		fmt.Fprintln(output, "get", r.get())
	case call == "done" && len(arguments) == 1:
		r.queue.Done(arguments[0])
	case call == "len" && len(arguments) == 0:
		fmt.Fprintln(output, "len", r.queue.Len())
	case call == "retries" && len(arguments) == 1:
		fmt.Fprintln(output, "retries", r.queue.NumRequeues(arguments[0]))
	case call == "advance" && len(arguments) == 1:
		duration, err := time.ParseDuration(arguments[0])
		if err != nil {
			return err
		}
		r.advance(duration)
	case call == "shut-down" && len(arguments) == 0:
		r.queue.ShutDown()
	case call == "scrape" && len(arguments) == 0:
		return r.scrape(output)
	default:
		return fmt.Errorf("no such call, or another number of arguments")
	}
	return nil
}

// get never blocks, because nobody would be there to add a key.
func (r *reference) get() string {
	if r.queue.Len() == 0 && !r.queue.ShuttingDown() {
		return "nothing"
	}
	key, shutDown := r.queue.Get()
	if shutDown {
		return "the end"
	}
	return key
}

// advance stops at every moment at which a delayed key is due, as real time does.
func (r *reference) advance(duration time.Duration) {
	end := r.clock.Now().Add(duration)
	for due := r.clock.due; due.After(r.clock.Now()) && due.Before(end); due = r.clock.due {
		r.clock.SetTime(due)
		r.settle()
	}
	r.clock.SetTime(end)
	r.settle()
}

func (r *reference) scrape(output io.Writer) error {
	if !r.queue.ShuttingDown() {
		// The second tick is received only when the first has been worked off.
		r.clock.tick(unfinishedTick, 2)
	}
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		return err
	}
	for _, family := range families {
		if !strings.HasPrefix(family.GetName(), "workqueue_") {
			continue
		}
		if _, err := expfmt.MetricFamilyToText(output, family); err != nil {
			return err
		}
	}
	return nil
}

// settle returns when the queue has taken notice of everything that was added with a delay, and of the time. The queue
// offers no way to ask for that, but its loop chooses by chance between a tick and a delayed add: that it chose sixty-four
// ticks while an add was waiting will not happen.
func (r *reference) settle() {
	if !r.queue.ShuttingDown() {
		r.clock.tick(delayedTick, 64)
	}
}

const (
	// How client-go's queue calls for its tickers: to look after delayed keys, and to update the metrics of unfinished work.
	delayedTick    = 10 * time.Second
	unfinishedTick = 500 * time.Millisecond
)

// scriptClock is a fake clock whose tickers tick when the script needs them to.
type scriptClock struct {
	*testingclock.FakeClock
	tickers map[time.Duration]chan time.Time
	// due is what the last timer was set to. The queue has one timer, for the delayed key that is due next. Written by the
	// queue's loop, read after settle.
	due time.Time
}

func (c *scriptClock) NewTimer(duration time.Duration) clock.Timer {
	c.due = c.Now().Add(duration)
	return c.FakeClock.NewTimer(duration)
}

func (c *scriptClock) NewTicker(period time.Duration) clock.Ticker {
	return scriptTicker(c.tickers[period])
}

func (c *scriptClock) tick(period time.Duration, times int) {
	for range times {
		c.tickers[period] <- c.Now()
	}
}

type scriptTicker chan time.Time

func (t scriptTicker) C() <-chan time.Time { return t }

func (t scriptTicker) Stop() {}
