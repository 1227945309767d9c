// Topics with Zeek Broker 1.4 in C++, the same work as topic_program.py.
//
//   broker_bench sink                listens, prints its port, ends with its stdin
//   broker_bench flood COUNT PORT    publishes one by one and prints "rate X"

#include <broker/broker.hh>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string>
#include <thread>

using namespace std::chrono_literals;

static const broker::topic there{"/bench/there"};
static const broker::topic back{"/bench/back"};

static bool starts_with(const std::string& text, const std::string& prefix) {
  return text.compare(0, prefix.size(), prefix) == 0;
}

static int sink() {
  broker::broker_options plain;
  plain.disable_ssl = true;  // on both sides: encryption is not what is measured
  broker::endpoint endpoint{broker::configuration{plain}};
  auto subscriber = endpoint.make_subscriber({there});
  std::cout << endpoint.listen("127.0.0.1", 0) << std::endl;
  std::thread([] {
    while (std::cin.get() != EOF) {
    }
    std::_Exit(0);
  }).detach();
  long seen = 0, wanted = 0;
  for (;;) {
    auto message = subscriber.get();
    auto& value = broker::get_data(message);
    if (auto text = broker::get_if<std::string>(value)) {
      if (starts_with(*text, "expect ")) {
        seen = 0;
        wanted = std::stol(text->substr(7));
      }
      endpoint.publish(back, *text);
    } else if (++seen == wanted) {
      endpoint.publish(back, "done");
    }
  }
}

static void wait_for(broker::subscriber& subscriber, const std::string& wanted) {
  for (;;) {
    auto message = subscriber.get();
    auto text = broker::get_if<std::string>(broker::get_data(message));
    if (text && *text == wanted)
      return;
  }
}

static int flood(long count, uint16_t port) {
  broker::broker_options plain;
  plain.disable_ssl = true;  // on both sides: encryption is not what is measured
  broker::endpoint endpoint{broker::configuration{plain}};
  auto subscriber = endpoint.make_subscriber({back});
  if (!endpoint.peer("127.0.0.1", port))
    return 1;
  for (int i = 0; i < 100 && subscriber.available() == 0; ++i) {
    endpoint.publish(there, "probe");
    std::this_thread::sleep_for(100ms);
  }
  double took = 0;
  for (long share : {count / 10, count}) {
    auto expect = "expect " + std::to_string(share);
    endpoint.publish(there, expect);
    wait_for(subscriber, expect);
    auto started = std::chrono::steady_clock::now();
    for (long i = 0; i < share; ++i)
      endpoint.publish(there, broker::vector{broker::integer{i}, std::string{"hello"}});
    wait_for(subscriber, "done");
    took = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  }
  std::cout << "rate " << count / took << std::endl;
  std::_Exit(0);
}

int main(int argc, char** argv) {
  std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "sink")
    return sink();
  if (mode == "flood" && argc == 4)
    return flood(std::atol(argv[2]), static_cast<uint16_t>(std::atoi(argv[3])));
  std::cerr << "broker_bench sink | flood COUNT PORT" << std::endl;
  return 2;
}
