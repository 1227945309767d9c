// The C++ Actor Framework 0.17 doing what callboard is measured at, in its default configuration.
//
//   caf_bench --mode=server                       publish a sink at a free port, print the port, end when stdin closes
//   caf_bench --mode=MODE --port=P --num=N        flood, rr, rrblock, pipe against that server; prints "rate X"
//   caf_bench --mode=local|reqlocal --num=N       two actors in one process; prints "rate X"
//   caf_bench --mode=floodlocal --num=N           one-way messages between two actors in one process; prints "rate X"
//   caf_bench --mode=spawn|memory --num=N         make N idle actors; prints "rate X": actors a second, or bytes for each
//   caf_bench --mode=monitor --port=P             print "watching", then "down NANOSECONDS" (steady clock) when it comes
//
// Every mode runs once unmeasured with a tenth of the work, so that connections, proxies and workers are warm.

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include <unistd.h>

#include "caf/all.hpp"
#include "caf/io/all.hpp"

using std::chrono::steady_clock;

using ask_atom = caf::atom_constant<caf::atom("ask")>;
using count_atom = caf::atom_constant<caf::atom("count")>;
using done_atom = caf::atom_constant<caf::atom("done")>;
using start_atom = caf::atom_constant<caf::atom("start")>;

namespace {

constexpr const char* loopback = "127.0.0.1";

struct sink_state {
  int64_t seen = 0;
};

// Counts plain integers, answers asked ones, and tells (and forgets) its count.
caf::behavior sink(caf::stateful_actor<sink_state>* self) {
  return {
    [=](int32_t) { ++self->state.seen; },
    [=](ask_atom, int32_t x) -> int32_t { return x; },
    [=](count_atom) -> int64_t {
      auto seen = self->state.seen;
      self->state.seen = 0;
      return seen;
    },
  };
}

// Fires all messages from inside one handler, then asks the sink how many it saw.
caf::behavior flooder(caf::event_based_actor* self, caf::actor to, int32_t count, caf::actor whom) {
  return {
    [=](start_atom) {
      for (int32_t i = 0; i < count; ++i)
        self->send(to, i);
      self->request(to, caf::infinite, count_atom::value).then([=](int64_t seen) {
        self->send(whom, done_atom::value, seen);
        self->quit();
      });
    },
  };
}

struct asker_state {
  int32_t unasked = 0;
  int32_t unanswered = 0;
};

void ask_next(caf::stateful_actor<asker_state>* self, caf::actor to, caf::actor whom) {
  if (self->state.unasked == 0)
    return;
  --self->state.unasked;
  self->request(to, caf::infinite, ask_atom::value, int32_t{7}).then([=](int32_t) {
    if (--self->state.unanswered > 0)
      return ask_next(self, to, whom);
    self->send(whom, done_atom::value, int64_t{0});
    self->quit();
  });
}

// Keeps `window` requests outstanding until `count` are answered.
caf::behavior asker(caf::stateful_actor<asker_state>* self, caf::actor to, int32_t count, int32_t window,
                    caf::actor whom) {
  self->state.unasked = self->state.unanswered = count;
  return {
    [=](start_atom) {
      for (int32_t i = 0; i < window; ++i)
        ask_next(self, to, whom);
    },
  };
}

caf::behavior pong(caf::event_based_actor*) {
  return {[](int32_t x) -> int32_t { return x; }};
}

// Ordinary messages to and fro, no requests.
caf::behavior ping(caf::stateful_actor<asker_state>* self, caf::actor to, int32_t count, caf::actor whom) {
  self->state.unanswered = count;
  return {
    [=](start_atom) { self->send(to, int32_t{1}); },
    [=](int32_t x) {
      if (--self->state.unanswered > 0)
        return self->send(to, x);
      self->send(whom, done_atom::value, int64_t{0});
      self->quit();
    },
  };
}

struct idle_state {
  int64_t number = 0;
  int64_t seen = 0;
};

caf::behavior idle(caf::stateful_actor<idle_state>* self) {
  return {[=](int32_t) { ++self->state.seen; }};
}

double resident() {
  std::ifstream statm{"/proc/self/statm"};
  long size = 0, pages = 0;
  statm >> size >> pages;
  return static_cast<double>(pages) * static_cast<double>(sysconf(_SC_PAGESIZE));
}

int spawn_idle(caf::actor_system& sys, const std::string& mode, int32_t count) {
  std::vector<caf::actor> kept;
  for (int32_t i = 0; i < count / 10; ++i)
    kept.emplace_back(sys.spawn(idle));
  auto before = resident();
  auto started = steady_clock::now();
  for (int32_t i = 0; i < count; ++i)
    kept.emplace_back(sys.spawn(idle));
  std::chrono::duration<double> took = steady_clock::now() - started;
  std::cout << "rate " << (mode == "spawn" ? count / took.count() : (resident() - before) / count) << std::endl;
  return 0;
}

struct config : caf::actor_system_config {
  std::string mode = "server";
  uint16_t port = 0;
  int32_t num = 10000;
  int32_t window = 100;

  config() {
    load<caf::io::middleman>();
    opt_group{custom_options_, "global"}
      .add(mode, "mode,m", "what to do")
      .add(port, "port,p", "where the server listens")
      .add(num, "num,n", "messages or requests")
      .add(window, "window,w", "requests outstanding in mode pipe");
  }
};

class client {
public:
  client(caf::actor_system& sys, const config& cfg) : sys_(sys), cfg_(cfg), self_(sys) {}

  int run() {
    if (!find_partner())
      return 1;
    if (cfg_.mode == "monitor")
      return watch();
    once(std::max<int32_t>(cfg_.num / 10, 1));
    auto started = steady_clock::now();
    auto answered = once(cfg_.num);
    std::chrono::duration<double> took = steady_clock::now() - started;
    if (is_flood() && answered != cfg_.num) {
      std::cerr << "the sink saw " << answered << " of " << cfg_.num << "\n";
      return 1;
    }
    std::cout << "rate " << cfg_.num / took.count() << std::endl;
    return 0;
  }

private:
  bool is_flood() const { return cfg_.mode == "flood" || cfg_.mode == "floodlocal"; }

  bool find_partner() {
    if (cfg_.mode == "local") {
      partner_ = sys_.spawn(pong);
    } else if (cfg_.mode == "reqlocal" || cfg_.mode == "floodlocal") {
      partner_ = sys_.spawn(sink);
    } else {
      auto remote = sys_.middleman().remote_actor(loopback, cfg_.port);
      if (!remote) {
        std::cerr << sys_.render(remote.error()) << "\n";
        return false;
      }
      partner_ = *remote;
    }
    return true;
  }

  int64_t once(int32_t count) {
    auto me = caf::actor_cast<caf::actor>(self_);
    caf::actor worker;
    if (cfg_.mode == "rrblock") {
      for (int32_t i = 0; i < count; ++i)
        self_->request(partner_, caf::infinite, ask_atom::value, i)
          .receive([](int32_t) {}, [&](caf::error& e) { std::cerr << sys_.render(e) << "\n"; });
      return count;
    }
    if (is_flood())
      worker = sys_.spawn(flooder, partner_, count, me);
    else if (cfg_.mode == "local")
      worker = sys_.spawn(ping, partner_, count, me);
    else
      worker = sys_.spawn(asker, partner_, count, cfg_.mode == "pipe" ? cfg_.window : 1, me);
    self_->send(worker, start_atom::value);
    int64_t answered = 0;
    self_->receive([&](done_atom, int64_t n) { answered = n; });
    return answered;
  }

  int watch() {
    self_->monitor(partner_);
    once(1); // an answer from the server: it has the monitor, which travelled before
    std::cout << "watching" << std::endl;
    self_->receive([](const caf::down_msg&) {
      auto now = steady_clock::now().time_since_epoch();
      std::cout << "down " << std::chrono::duration_cast<std::chrono::nanoseconds>(now).count() << std::endl;
    });
    return 0;
  }

  caf::actor_system& sys_;
  const config& cfg_;
  caf::scoped_actor self_;
  caf::actor partner_;
};

void caf_main(caf::actor_system& sys, const config& cfg) {
  if (cfg.mode == "server") {
    auto published = sys.spawn(sink);
    auto port = sys.middleman().publish(published, 0, loopback);
    if (!port) {
      std::cerr << sys.render(port.error()) << "\n";
      std::exit(1);
    }
    std::cout << *port << std::endl;
    std::string line;
    while (std::getline(std::cin, line)) {
    }
    caf::anon_send_exit(published, caf::exit_reason::kill);
    return;
  }
  auto is_spawn = cfg.mode == "spawn" || cfg.mode == "memory";
  auto code = is_spawn ? spawn_idle(sys, cfg.mode, cfg.num) : client{sys, cfg}.run();
  std::cout.flush();
  std::_Exit(code); // the measurement is taken; nothing to tear down in order
}

} // namespace

CAF_MAIN()
