// A CAF node for the tests: reads a command per line and prints a line for each outcome.
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <thread>

#include "caf/all.hpp"
#include "caf/io/all.hpp"
#include "caf/openssl/all.hpp"

using namespace caf;
using std::string;

struct point {
  int32_t x;
  string name;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, point& p) {
  return f(meta::type_name("point"), p.x, p.name);
}

using add_atom = atom_constant<atom("add")>;
using fail_atom = atom_constant<atom("fail")>;
using hang_atom = atom_constant<atom("hang")>;
using quit_atom = atom_constant<atom("quit")>;
using self_atom = atom_constant<atom("self")>;
using relay_atom = atom_constant<atom("relay")>;
using tell_atom = atom_constant<atom("tell")>;
using watch_atom = atom_constant<atom("watch")>;
using link_atom2 = atom_constant<atom("linkto")>;
using types_atom = atom_constant<atom("types")>;
using echo_atom = atom_constant<atom("echo")>;
using block_atom = atom_constant<atom("block")>;
using uri_atom = atom_constant<atom("uri")>;

using typed_adder = typed_actor<replies_to<int32_t, int32_t>::with<int32_t>>;

void say(const string& text) {
  std::cout << text << std::endl;
}

behavior service(event_based_actor* self) {
  self->set_down_handler([=](down_msg& down) {
    say("down " + self->system().render(down.reason));
  });
  auto pending = std::make_shared<std::vector<response_promise>>();
  return {
    [](int32_t a, int32_t b) { return a + b; },
    [](add_atom, int32_t a, int32_t b) { return a + b; },
    [](const string& text) { say("got " + text); },
    [](const point& p) { return point{p.x * 2, p.name + "!"}; },
    [](fail_atom) -> result<int32_t> { return make_error(sec::runtime_error, string("boom")); },
    [=](hang_atom) -> result<int32_t> {
      auto promise = self->make_response_promise();
      pending->push_back(promise);
      return promise;
    },
    [=](quit_atom) { self->quit(exit_reason::user_shutdown); },
    [=](self_atom) { return actor_cast<actor>(self); },
    [=](relay_atom, const actor& to, int32_t a, int32_t b) {
      auto promise = self->make_response_promise();
      self->request(to, std::chrono::seconds(9), a, b)
        .then([=](int32_t sum) mutable { promise.deliver(sum); },
              [=](error& e) mutable { promise.deliver(std::move(e)); });
      return promise;
    },
    [=](tell_atom, const actor& to, const string& text) { self->send(to, text); },
    [=](watch_atom, const actor& to) { self->monitor(to); },
    [=](link_atom2, const actor& to) { self->link_to(to); },
    [](types_atom, float f, double d, bool b, uint16_t x, int64_t y, const std::vector<string>& v,
       const std::map<string, string>& m) {
      return make_message(f, d, b, x, y, v, m);
    },
    [](echo_atom, duration d) { return d; },
    [](echo_atom, const config_value& v) { return v; },
    [](echo_atom, const node_id& n) { return n; },
    [](echo_atom, const group& g) { return g; },
    [](block_atom, int32_t ms) {
      say("blocking");
      std::this_thread::sleep_for(std::chrono::milliseconds(ms));
    },
    [](uri_atom) { return make_node_id(*make_uri("test:node")); },
  };
}

behavior calculator(event_based_actor* self, int32_t base) {
  return {
    [=](int32_t a) { return a + base; },
    [=](quit_atom) { self->quit(exit_reason::unhandled_exception); },
  };
}

behavior member(event_based_actor* self, const group& joined) {
  self->join(joined);
  return {[](const string& text) { say("member " + text); }};
}

struct config : actor_system_config {
  config() {
    load<io::middleman>();
    load<openssl::manager>();
    add_actor_type("calc", calculator);
    add_message_type<point>("point");
  }
};

void caf_main(actor_system& system, const config&) {
  auto& network = system.middleman();
  scoped_actor self{system};
  auto wait = std::chrono::seconds(9);
  actor own, remote;
  group joined;
  auto failed = [&](const error& e) { say("error " + system.render(e)); };
  for (string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    string verb, text;
    int a = 0, b = 0;
    words >> verb;
    if (verb == "serve") {
      own = system.spawn(service);
      auto port = network.publish(own, 0, "127.0.0.1");
      system.registry().put(atom("service"), actor_cast<strong_actor_ptr>(own));
      say("port " + std::to_string(*port));
    } else if (verb == "typed") {
      auto adder = system.spawn([]() -> typed_adder::behavior_type {
        return {[](int32_t x, int32_t y) { return x + y; }};
      });
      say("port " + std::to_string(*network.publish(adder, 0, "127.0.0.1")));
    } else if (verb == "open") {
      say("port " + std::to_string(*network.open(0, "127.0.0.1")));
    } else if (verb == "remote") {
      words >> a;
      auto found = network.remote_actor("127.0.0.1", static_cast<uint16_t>(a));
      if (found) {
        remote = *found;
        say("remote");
      } else {
        failed(found.error());
      }
    } else if (verb == "typedremote") {
      words >> a;
      auto found = network.remote_actor<typed_adder>("127.0.0.1", static_cast<uint16_t>(a));
      if (!found)
        failed(found.error());
      else
        self->request(*found, wait, 20, 22)
          .receive([](int32_t sum) { say("sum " + std::to_string(sum)); }, failed);
    } else if (verb == "add") {
      words >> a >> b;
      self->request(remote, wait, a, b)
        .receive([](int32_t sum) { say("sum " + std::to_string(sum)); }, failed);
    } else if (verb == "addatom") {
      words >> a >> b;
      self->request(remote, wait, add_atom::value, a, b)
        .receive([](int32_t sum) { say("sum " + std::to_string(sum)); }, failed);
    } else if (verb == "ask") {
      words >> text;
      self->request(remote, wait, text).receive([](const string& s) { say("answer " + s); }, failed);
    } else if (verb == "point") {
      self->request(remote, wait, point{4, "p"})
        .receive([](const point& p) { say("point " + std::to_string(p.x) + p.name); }, failed);
    } else if (verb == "double") {
      self->request(remote, wait, 1.5).receive([](double d) { say(std::to_string(d)); }, failed);
    } else if (verb == "tell") {
      words >> text;
      self->send(remote, text);
      say("sent");
    } else if (verb == "high") {
      words >> text;
      self->send<message_priority::high>(remote, text);
      say("sent");
    } else if (verb == "monitor") {
      self->monitor(remote);
      say("monitored");
    } else if (verb == "await") {
      self->receive([&](down_msg& down) { say("down " + system.render(down.reason)); },
                    after(wait) >> [] { say("no down"); });
    } else if (verb == "exit") {
      self->send_exit(remote, exit_reason::user_shutdown);
      say("sent");
    } else if (verb == "link") {
      auto other = remote;
      auto linked = system.spawn([other](event_based_actor* actor) -> behavior {
        actor->link_to(other);
        actor->set_exit_handler([actor](exit_msg& e) {
          say("exit " + actor->system().render(e.reason));
          actor->quit(e.reason);
        });
        return {[](int32_t) {}, [actor](quit_atom) { actor->quit(exit_reason::kill); }};
      });
      own = linked;
      say("linked");
    } else if (verb == "quitown") {
      anon_send(own, quit_atom::value);
      say("sent");
    } else if (verb == "give") {
      self->send(remote, own);
      say("sent");
    } else if (verb == "relay") {
      words >> a >> b;
      self->request(remote, wait, relay_atom::value, own, a, b)
        .receive([](int32_t sum) { say("sum " + std::to_string(sum)); }, failed);
    } else if (verb == "spawn") {
      words >> text >> a;
      auto made = network.remote_spawn<actor>(remote.node(), text, make_message(int32_t{a}), wait);
      if (made)
        self->request(*made, wait, int32_t{5})
          .receive([](int32_t sum) { say("sum " + std::to_string(sum)); }, failed);
      else
        failed(made.error());
    } else if (verb == "lookup") {
      words >> text;
      auto found = network.remote_lookup(atom_from_string(text), remote.node());
      if (found) {
        remote = actor_cast<actor>(found);
        say("remote");
      } else {
        say("none");
      }
    } else if (verb == "pass") {
      words >> a;
      auto found = network.remote_actor("127.0.0.1", static_cast<uint16_t>(a));
      if (found)
        self->send(*found, remote);
      say(found ? "sent" : "none");
    } else if (verb == "forget") {
      remote = nullptr;
      say("forgotten");
    } else if (verb == "unpublish") {
      say(network.unpublish(own) ? "unpublished" : "none");
    } else if (verb == "tlsserve") {
      own = system.spawn(service);
      say("port " + std::to_string(*openssl::publish(own, 0, "127.0.0.1")));
    } else if (verb == "tlsremote") {
      words >> a;
      auto found = openssl::remote_actor(system, "127.0.0.1", static_cast<uint16_t>(a));
      if (found) {
        remote = *found;
        say("remote");
      } else {
        failed(found.error());
      }
    } else if (verb == "hang") {
      self->request(remote, std::chrono::milliseconds(300), string("hang"))
        .receive([](const string&) { say("answer"); }, failed);
    } else if (verb == "flood") {
      words >> a;
      for (int32_t i = 0; i < a; ++i)
        self->send(remote, std::to_string(i));
      say("sent");
    } else if (verb == "blob") {
      words >> a;
      self->send(remote, string(static_cast<size_t>(a), 'x'));
      say("sent");
    } else if (verb == "groups") {
      joined = system.groups().get_local("news");
      system.spawn(member, joined);
      say("port " + std::to_string(*network.publish_local_groups(0, "127.0.0.1")));
    } else if (verb == "join") {
      words >> a;
      auto found = network.remote_group("news", "127.0.0.1", static_cast<uint16_t>(a));
      if (found) {
        joined = *found;
        system.spawn(member, joined);
        say("joined");
      } else {
        failed(found.error());
      }
    } else if (verb == "say") {
      words >> text;
      self->send(joined, text);
      say("said");
    }
  }
}

CAF_MAIN()
